//! Output of `ip xfrm`: taken over as tables that say the same, or refused in words without a key.

use std::path::Path;

use weir_path::plan::StageKind;
use weir_run::ipsec::import;
use weir_run::topology::{self, write::plan::write_esp};

use crate::draw::Draw;

/// Digits that only a key has.
const KEY: &str = "0xfeedface05060708090a0b0c0d0e0f10feedface";
const SHORT: &str = "feedface";
const AROUND: &str = "[[port]]\ninterface = \"lan\"\n[[port]]\ninterface = \"wan\"\n[[epair]]\nname = \"e0\"\n\
                      [[wire]]\nports = [\"lan\", \"e0a\"]\n";
/// The lines that are printed, most of them right.
const LINES: [&str; 48] = [
    "src 192.0.2.1 dst 192.0.2.2\n\tproto esp spi 0x00001001 reqid 1 mode tunnel",
    "src 192.0.2.2 dst 192.0.2.1\n\tproto esp spi 0x00002001(8193) reqid 1(0x00000001) mode tunnel",
    "src 2001:db8::1 dst 2001:db8::2\n\tproto esp spi 0x00001001 reqid 0 mode transport",
    "src 192.0.2.1 dst 2001:db8::2\n\tproto esp spi 0x00000001 reqid 0 mode tunnel",
    "src 192.0.2.1 dst 192.0.2.2\n\tproto ah spi 0x00001001 reqid 1 mode tunnel",
    "\treplay-window 0 flag af-unspec",
    "\treplay-window 32 seq 0x00000000 flag nopmtudisc af-unspec esn (0x00100000)",
    "\treplay-window 4294967295",
    "\tanti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000",
    "\tanti-replay context: seq 0x0, oseq 0x1, bitmap 0x00000000",
    "\tanti-replay esn context:\n\t seq-hi 0x0, seq 0x0, oseq-hi 0x0, oseq 0x0\n\t replay_window 1024, bitmap-length 32",
    "\t seq-hi 0x0, seq 0x0, oseq-hi 0xffffffff, oseq 0xffffffff",
    "\t replay_window 1025, bitmap-length 32",
    "\tenc ecb(cipher_null) ",
    "\tauth digest_null ",
    "\tencap type espinudp sport 4500 dport 4501 addr 0.0.0.0",
    "\tencap type espintcp sport 1 dport 2 addr 0.0.0.0",
    "\tdir in",
    "\tdir out",
    "\tmark 0x1/0xff",
    "\tif_id 0x7",
    "\tsel src 0.0.0.0/0 dst 0.0.0.0/0 ",
    "\tlifetime config:\n\t  limit: soft (INF)(bytes), hard 9(bytes)\n\t  limit: soft 5(packets), hard (INF)(packets)",
    "\t  limit: soft 18446744073709551615(bytes), hard 1(bytes)",
    "\t  expire add: soft 3000(sec), hard 3600(sec)\n\t  expire use: soft 1(sec), hard 1(sec)",
    "\t  expire add: soft 18446744073709551614(sec), hard 1(sec)",
    "\tstats:\n\t  replay-window 0 replay 0 failed 0",
    "src 10.1.0.0/24 dst 10.2.0.0/24 \n\tdir out priority 100 ptype main ",
    "src 10.2.0.0/24 dst 10.1.0.0/24 \n\tdir in priority 100 ptype main ",
    "src 10.2.0.0/24 dst 10.1.0.0/24 uid 0\n\tdir fwd action allow index 2 priority 100 ptype main",
    "src fd00::/64 dst ::/0 proto tcp sport 80 dport 90\n\tdir out action block index 1 priority 7 ptype main",
    "src 10.2.0.1/24 dst ::/0 \n\tdir in priority 1 ptype main ",
    "src 0.0.0.0/0 dst 0.0.0.0/0 proto icmp type 8 code 0 \n\tdir out priority 1 ptype main ",
    "src 0.0.0.0/0 dst 0.0.0.0/0 proto 47 dev eth0 \n\tdir out priority 1 ptype main ",
    "src 0.0.0.0/0 dst 0.0.0.0/0 \n\tsocket in priority 0 ptype main ",
    "\ttmpl src 192.0.2.1 dst 192.0.2.2\n\t\tproto esp reqid 1 mode tunnel",
    "\ttmpl src 192.0.2.2 dst 192.0.2.1\n\t\tproto esp spi 0x00000000(0) reqid 1(0x00000001) mode tunnel",
    "\ttmpl src 0.0.0.0 dst 0.0.0.0\n\t\tproto esp reqid 0 mode transport",
    "\ttmpl src :: dst ::\n\t\tproto esp reqid 0 mode transport\n\t\tlevel required share any ",
    "\t\tlevel use share any ",
    "\t\tproto esp",
    "\ttmpl",
    "src",
    "src nobody dst 192.0.2.1",
    "\tproto esp spi 0x1000 reqid 1 mode beet",
    "\tdir",
    "",
    "Error: nothing",
];

/// Any text.
pub fn import_text(bytes: &[u8]) {
    look_at(&String::from_utf8_lossy(bytes));
}

/// Lines of both commands in any order, keys of several algorithms among them.
pub fn imports(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut text = String::new();
    while !draw.is_empty() {
        if draw.rarely(64) {
            text.push(char::from(draw.u8()));
        }
        let key = match draw.below(4) {
            0 | 1 => format!("\taead rfc4106(gcm(aes)) {KEY} 128"),
            2 => format!(
                "\taead rfc7539esp(chacha20,poly1305) {KEY}00112233445566778899aabbccddeeff (288 bits) 128"
            ),
            _ => format!(
                "\tauth-trunc hmac(sha256) {KEY}00112233445566778899aabb 128\n\tenc cipher_null  (0 bits)"
            ),
        };
        text += &match draw.below(LINES.len() + 4) {
            // Most have their counters.
            line @ 0..3 if draw.rarely(8) => format!("{}\n{key}", LINES[line]),
            line @ 0..3 => format!("{}\n{key}\n{}", LINES[line], LINES[8 + 2 * draw.below(2)]),
            3 => key,
            line => LINES[line - 4].to_string(),
        };
        text.push('\n');
    }
    look_at(&text);
}

fn look_at(text: &str) {
    let own = ["192.0.2.1", "2001:db8::1"].map(|own| own.parse().expect("an address"));
    let import = match import::read(text, Path::new("/run/keys"), &own) {
        Ok(import) => import,
        Err(why) => {
            assert!(!why.contains(SHORT) && !why.is_empty() && !why.contains('\n'), "{why}");
            return;
        }
    };
    let counted = text.matches("oseq 0x").count();
    assert!(
        import.plan.associations.len() <= counted,
        "a key is taken for unused whose counters nobody has read"
    );
    assert!(import.notes.iter().all(|note| !note.contains(SHORT)), "{:?}", import.notes);
    let tables = write_esp("tunnel", Some(["e0b", "wan"]), &import.plan);
    assert!(!tables.contains(SHORT), "{tables}");
    let read = topology::read("f.toml", &format!("{AROUND}{tables}"), "4711", |_| Err("none".into()));
    // Associations that a file cannot say, such as two inbound ones of an SPI, are refused there; the others are read as they were.
    let Ok(read) = read else { return };
    let stages = read.plan.expect("it has ports").stages.into_iter();
    let esp = stages.filter_map(|stage| match stage.kind {
        StageKind::Esp(plan) => Some(*plan),
        _ => None,
    });
    assert_eq!(esp.collect::<Vec<_>>(), [import.plan]);
}
