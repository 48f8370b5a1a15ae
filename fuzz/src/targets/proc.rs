//! Tables of `/proc`: entries written into them are found, and other lines are passed over.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use weir_port::unsent::{self, Unsent};
use weir_port::{holder, mountinfo};

use crate::draw::Draw;

/// Sockets, descriptors and mounts.
pub fn proc_tables(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    match draw.below(4) {
        0 => {
            let text = String::from_utf8_lossy(draw.rest());
            let mut unsent = Unsent::default();
            unsent::add(&mut unsent, &text);
            assert!(unsent.sockets <= text.lines().count() as u64 && unsent.bytes >= unsent.sockets);
            assert!(!holder::is_link_of(&text, 7) || (text.contains("xdp") && text.contains('7')));
            assert!(mountinfo::mounts(text.as_bytes()).count() <= text.lines().count());
        }
        1 => sockets(&mut draw),
        2 => descriptor(&mut draw),
        _ => mounts(&mut draw),
    }
}

fn sockets(draw: &mut Draw) {
    let mut table =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n".to_string();
    let mut expected = Unsent::default();
    for number in 0..draw.below(8) {
        let (state, to_send, to_read) = (1 + draw.u8() % 12, draw.u32(), draw.u32());
        // FIN_WAIT1, LAST_ACK and CLOSING of include/net/tcp_states.h.
        if [4, 9, 11].contains(&state) && to_send > 0 {
            expected.sockets += 1;
            expected.bytes += u64::from(to_send);
        }
        table += &format!(
            "{number:4}: {:08X}:{:04X} {:08X}:{:04X} {state:02X} {to_send:08X}:{to_read:08X} 01:{:08X} 00000000     0\n",
            draw.u32(),
            draw.u16(),
            draw.u32(),
            draw.u16(),
            draw.u32()
        );
    }
    let mut found = Unsent::default();
    unsent::add(&mut found, &table);
    assert_eq!(found, expected);
}

fn descriptor(draw: &mut Draw) {
    let (kind, program, wanted) = (draw.pick(&["xdp", "tcx", "perf"]), draw.u8(), draw.u8());
    let text =
        format!("pos:\t0\nflags:\t02000000\nlink_type:\t{kind}\nlink_id:\t{wanted}\nprog_id:\t{program}\n");
    assert_eq!(holder::is_link_of(&text, wanted.into()), kind == "xdp" && program == wanted);
}

fn mounts(draw: &mut Draw) {
    let (mut text, mut expected) = (String::new(), Vec::new());
    for number in 0..draw.below(5) {
        let len = draw.below(12);
        let name: Vec<u8> =
            draw.bytes(len).iter().map(|byte| b" \t\n\\/ab01234"[usize::from(byte % 12)]).collect();
        let path = [b"/run/netns/", &name[..]].concat();
        // As show_mountinfo of the kernel's fs/proc_namespace.c writes it: seq_path(.., " \t\n\\").
        let escaped: String = path
            .iter()
            .map(|byte| match byte {
                b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}"),
                other => char::from(*other).to_string(),
            })
            .collect();
        let kind = draw.pick(&["nsfs", "nsfs", "tmpfs"]);
        text += &format!("{number} 25 0:4 net:[{number}] {escaped} rw shared:9 - {kind} {kind} rw\n");
        expected.push((format!("net:[{number}]"), Path::new(OsStr::from_bytes(&path)).to_path_buf(), kind));
    }
    let found: Vec<_> = mountinfo::mounts(text.as_bytes()).collect();
    assert_eq!(found.len(), expected.len());
    for (mount, (root, place, kind)) in found.iter().zip(&expected) {
        assert_eq!((mount.root, &mount.place, mount.kind), (root.as_bytes(), place, kind.as_bytes()));
    }
}
