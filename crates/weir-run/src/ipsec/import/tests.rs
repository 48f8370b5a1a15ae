//! The output of `ip xfrm` as tables that are read again, and as key files.

mod transport;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use weir_path::esp::plan::PolicyVerb;
use weir_path::plan::StageKind;

use super::*;
use crate::ipsec::mark_file::MarkKind;
use crate::ipsec::tests::Folder;
use crate::topology;
use crate::topology::write::plan::write_esp;

const KEY: &str = "0102030405060708090a0b0c0d0e0f10a1b2c3d4";
const OTHER: &str = "1112030405060708090a0b0c0d0e0f10a1b2c3d4";
/// The tables around those of an ESP.
const AROUND: &str = "[[port]]\ninterface = \"lan\"\n[[port]]\ninterface = \"wan\"\n[[epair]]\nname = \"e0\"\n\
                      [[wire]]\nports = [\"lan\", \"e0a\"]\n";

/// A tunnel, as `ip xfrm state; ip xfrm policy` of iproute2 6.1 print it.
fn printed() -> String {
    format!(
        "src 192.0.2.1 dst 192.0.2.2
\tproto esp spi 0x00001001 reqid 1 mode tunnel
\treplay-window 0 flag af-unspec esn
\taead rfc4106(gcm(aes)) 0x{KEY} 128
\tanti-replay esn context:
\t seq-hi 0x0, seq 0x0, oseq-hi 0x0, oseq 0x0
\t replay_window 0, bitmap-length 0
\tsel src 0.0.0.0/0 dst 0.0.0.0/0
src 192.0.2.2 dst 192.0.2.1
\tproto esp spi 0x00002001 reqid 1 mode tunnel
\treplay-window 0 flag af-unspec esn
\taead rfc4106(gcm(aes)) 0x{OTHER} 128
\tanti-replay esn context:
\t seq-hi 0x0, seq 0x0, oseq-hi 0x0, oseq 0x0
\t replay_window 1024, bitmap-length 32
\t 00000000 00000000 00000000 00000000
\tsel src 0.0.0.0/0 dst 0.0.0.0/0
src 10.1.0.0/24 dst 10.2.0.0/24
\tdir out priority 100 ptype main
\ttmpl src 192.0.2.1 dst 192.0.2.2
\t\tproto esp reqid 1 mode tunnel
src 10.2.0.0/24 dst 10.1.0.0/24
\tdir fwd priority 100 ptype main
\ttmpl src 192.0.2.2 dst 192.0.2.1
\t\tproto esp reqid 1 mode tunnel
src 10.2.0.0/24 dst 10.1.0.0/24
\tdir in priority 100 ptype main
\ttmpl src 192.0.2.2 dst 192.0.2.1
\t\tproto esp reqid 1 mode tunnel
src 0.0.0.0/0 dst 0.0.0.0/0
\tsocket in priority 0 ptype main
"
    )
}

/// A transport association in UDP, as `ip -s xfrm state` prints it.
fn with_statistics() -> String {
    format!(
        "src 2001:db8::1 dst 2001:db8::2
\tproto esp spi 0x00001001(4097) reqid 7(0x00000007) mode transport
\treplay-window 32 seq 0x00000000 flag  (0x00000000)
\taead rfc7539esp(chacha20,poly1305) 0x{KEY}{KEY:.32} (288 bits) 128
\tencap type espinudp sport 4500 dport 4501 addr ::
\tanti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000
\tlifetime config:
\t  limit: soft (INF)(bytes), hard 1000000(bytes)
\t  limit: soft 5(packets), hard (INF)(packets)
\t  expire add: soft 3000(sec), hard 3600(sec)
\t  expire use: soft 0(sec), hard 0(sec)
\tlifetime current:
\t  0(bytes), 0(packets)
\t  add 2026-11-24 09:51:24 use -
\tstats:
\t  replay-window 0 replay 0 failed 0
\tsel src ::/0 dst ::/0 uid 0
"
    )
}

fn import(text: &str, own: &[&str]) -> Result<Import, String> {
    let own: Vec<IpAddr> = own.iter().map(|own| own.parse().unwrap()).collect();
    read(text, Path::new("/keys"), &own)
}

fn refused(text: &str, own: &[&str]) -> String {
    let why = import(text, own).err().unwrap_or_else(|| panic!("it is refused:\n{text}"));
    assert!(![KEY, OTHER].iter().any(|key| why.contains(&key[..8])), "{why}");
    why
}

#[test]
fn a_tunnel_is_read_as_it_was_written() {
    let import = import(&printed(), &[]).unwrap();
    assert_eq!(import.notes, [""; 0]);
    let [out, back] = &import.plan.associations[..] else { panic!("two associations") };
    assert_eq!((out.name.as_str(), out.is_inbound, out.spi), ("out-00001001", false, 0x1001));
    assert_eq!((back.name.as_str(), back.is_inbound, back.window), ("in-00002001", true, 1024));
    assert!(out.is_extended && out.is_tunnel && out.algorithm.name() == "aes128-gcm");
    assert_eq!(out.key_file.as_deref(), Some("/keys/7c809baabf955608b02c142516a2e393.key"));
    assert_eq!(import.plan.addresses, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    let policies: Vec<_> =
        import.plan.policies.iter().map(|of| (of.is_inbound, &of.associations[..])).collect();
    // The policy that was added first is printed last, and asked first.
    assert_eq!(policies, [(true, &["in-00002001".to_string()][..]), (false, &["out-00001001".to_string()])]);

    let text = write_esp("tunnel", Some(["e0b", "wan"]), &import.plan);
    assert!(!text.contains(&KEY[..8]), "{text}");
    let file = format!("{AROUND}{text}");
    let read = topology::read("f.toml", &file, "", |_| Err("none".into()));
    let read = read.unwrap_or_else(|why| panic!("{why:?}\n{file}"));
    let stages = read.plan.unwrap().stages;
    let esp = stages.into_iter().find_map(|stage| match stage.kind {
        StageKind::Esp(plan) => Some(*plan),
        _ => None,
    });
    assert_eq!(esp, Some(import.plan));
}

/// The kernel has such an entry from the first question for an association on, as `ip` of iproute2 6.1 prints it.
#[test]
fn an_association_that_is_negotiated_is_left_out() {
    let negotiated = "src 192.0.2.2 dst 192.0.2.1
\tproto esp spi 0x00000313 reqid 0 mode tunnel
\treplay-window 0
\tanti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000
\tsel src 192.0.2.2/32 dst 192.0.2.1/32
";
    let import = import(&format!("{negotiated}{}", printed()), &[]).unwrap();
    assert_eq!(import.notes, ["line 1: an association that is still negotiated has no key and is left out"]);
    assert_eq!(import.plan.associations.len(), 2);
}

/// The kernel keeps a window of more than 32 packets in the context of extended numbers, with such numbers or without.
#[test]
fn the_flag_alone_tells_extended_numbers() {
    let extended = |flags: &str| {
        let text = printed().replace("flag af-unspec esn", flags);
        import(&text, &[]).unwrap().plan.associations.iter().map(|of| of.is_extended).collect::<Vec<_>>()
    };
    assert_eq!(extended("flag af-unspec esn"), [true; 2]);
    assert_eq!(extended("flag af-unspec 80"), [true; 2], "as ip printed it before it knew the name");
    assert_eq!(extended("flag af-unspec"), [false; 2]);
}

#[test]
fn statistics_say_lifetimes_and_ports() {
    let import = import(&with_statistics(), &["2001:db8::2"]).unwrap();
    let [of] = &import.plan.associations[..] else { panic!("one association") };
    assert!(of.is_inbound && !of.is_tunnel && !of.is_extended);
    assert_eq!((of.window, of.udp_ports), (32, Some([4500, 4501])));
    assert_eq!(of.algorithm.name(), "chacha20-poly1305");
    let (soft, hard) = (of.lifetime.soft, of.lifetime.hard);
    assert_eq!((soft.bytes, soft.packets, soft.time_ns), (None, Some(5), Some(3_000_000_000_000)));
    assert_eq!((hard.bytes, hard.packets, hard.time_ns), (Some(1_000_000), None, Some(3_600_000_000_000)));
    let sender = self::import(&with_statistics(), &["2001:db8::1"]).unwrap();
    assert!(!sender.plan.associations[0].is_inbound);
}

#[test]
fn null_encryption_has_the_key_of_its_proof_or_none() {
    let of = |lines: &str| printed().replace(&format!("aead rfc4106(gcm(aes)) 0x{KEY} 128"), lines);
    let proof = format!("auth-trunc hmac(sha256) 0x{KEY}{KEY:.24} 128\n\tenc ecb(cipher_null) ");
    let proven = import(&of(&proof), &[]).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(proven.plan.associations[0].algorithm, weir_ipsec::algorithm::Algorithm::NullHmacSha256);
    let none =
        import(&of("auth digest_null \n\tenc ecb(cipher_null) "), &[]).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(none.plan.associations[0].algorithm, weir_ipsec::algorithm::Algorithm::Null);
    assert_eq!((none.plan.associations[0].key_file.as_ref(), none.keys.len()), (None, 1));
}

#[test]
fn what_cannot_be_taken_over_is_refused_with_its_line() {
    let aead = "aead rfc4106(gcm(aes))";
    for (from, to, own, expected) in [
        (
            "oseq-hi 0x0, oseq 0x0",
            "oseq-hi 0x1, oseq 0x2",
            "",
            "line 6: the kernel has sent 4294967298 packets with",
        ),
        (
            "\tsel src 0.0.0.0/0",
            "\tlifetime current:\n\t  84(bytes), 3(packets)\n\tsel src 0.0.0.0/0",
            "",
            "line 9: the kernel has sent 3 packets with",
        ),
        (
            "\tsel src 0.0.0.0/0",
            "\t  add 2026-01-01 00:00:00 use 2026-01-01 00:00:01\n\tsel src 0.0.0.0/0",
            "",
            "line 8: the kernel has sent 1 packets with",
        ),
        (
            "\tsel src",
            "\tlastused 2026-01-01 00:00:01\n\tsel src",
            "",
            "line 8: the kernel has sent 1 packets with",
        ),
        (
            "\tsel src 0.0.0.0/0",
            "\tcrypto offload parameters: dev eth0 dir out mode packet\n\tsel src 0.0.0.0/0",
            "",
            "line 8: the device numbers what it sends",
        ),
        ("proto esp spi", "proto ah spi", "", "line 2: proto ah is not built"),
        ("mode tunnel", "mode beet", "", "line 2: mode beet is not built"),
        (aead, "aead rfc4543(gcm(aes))", "", "line 4: rfc4543(gcm(aes)) with a key of 20 bytes"),
        (
            "0x0102030405060708090a0b0c0d0e0f10a1b2c3d4 128",
            "<<Keys hidden>> 128",
            "",
            "line 4: this shows no key",
        ),
        (
            "128",
            "96",
            "",
            "line 4: rfc4106(gcm(aes)) with a key of 20 bytes and an ICV of 96 bits is not built",
        ),
        (
            "\t\tproto esp reqid 1 mode tunnel\n",
            "\t\tproto esp reqid 1 mode tunnel\n\t\tlevel use\n",
            "",
            "level use",
        ),
        (KEY, "00", "", "line 4: rfc4106(gcm(aes)) with a key of 1 bytes"),
        (KEY, "0000000000000000000000000000000000000000", "", "line 4: its key is nothing but zeros"),
        (
            "aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f10a1b2c3d4 128",
            "enc ecb(cipher_null)\n\tauth-trunc hmac(sha1) 0x0102 96",
            "",
            "line 5: ecb(cipher_null) with hmac(sha1)",
        ),
        ("src 192.0.2.1 dst", "src nobody dst", "", "line 1: src nobody is no address"),
        ("src 10.1.0.0/24", "src 10.1.0.0/33", "", "line 18: src 10.1.0.0/33 is no prefix"),
        (
            "\tproto esp spi 0x00001001 reqid 1 mode tunnel\n",
            "",
            "",
            "line 1: this is not what `ip xfrm state`",
        ),
        (
            "\t seq-hi 0x0, seq 0x0, oseq-hi 0x0, oseq 0x0\n",
            "",
            "",
            "line 1: the counters of this association (oseq) are missing",
        ),
        ("oseq-hi 0x0, oseq 0x0", "oseq-hi 0x0, oseq 0", "", "line 6: the counters of this association"),
        (
            "\t\tproto esp reqid 1 mode tunnel\n",
            "",
            "",
            "line 20: the line behind this tmpl is missing: the text is cut off",
        ),
        ("0x00001001", "0x100001001", "", "line 2: spi 0x100001001 is no such number"),
        ("0x00001001", "0x000000ff", "", "line 1: SPI 0xff is reserved"),
        (OTHER, KEY, "", "line 9: it has the key of out-00001001"),
    ] {
        let text = printed().replacen(from, to, 1);
        assert_ne!(text, printed(), "{from}");
        let own: Vec<&str> = own.split_whitespace().collect();
        let why = refused(&text, &own);
        assert!(why.contains(expected), "{from} -> {to}: {why}");
    }
    let again = printed().replacen("src 192.0.2.1 dst 192.0.2.2", "src 192.0.2.3 dst 192.0.2.1", 1);
    let again = again.replacen("0x00001001", "0x00002001", 1);
    assert_eq!(refused(&again, &["192.0.2.1"]), "line 9: in-00002001 has this SPI too");
    let states: String = printed().split("src 10.1.0.0").next().unwrap().into();
    assert!(refused(&states, &[]).contains("name this gateway's own addresses by --own"));
    assert!(!refused(&states, &[]).contains("192.0.2"), "no address is guessed");
    assert_eq!(import(&states, &["192.0.2.1"]).unwrap().plan.associations.len(), 2);
}

/// Wherever the text ends, no key is taken for unused whose counters nobody has read.
#[test]
fn a_text_that_is_cut_off_makes_no_key_unused() {
    let used = |text: &str| text.replace("oseq 0x0", "oseq 0x7");
    let whole = [printed(), used(&printed()), with_statistics(), used(&with_statistics())];
    for (text, counters) in
        whole.iter().zip([["oseq 0x0\n"; 2], ["oseq 0x7"; 2], ["oseq 0x0"; 2], ["oseq 0x7"; 2]])
    {
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            for own in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
                let Ok(import) = import(&text[..end], &[own]) else { continue };
                let counted = text[..end].matches(counters[0].trim_end()).count();
                assert!(import.plan.associations.len() <= counted, "{}", &text[..end]);
                let senders = import.plan.associations.iter().filter(|of| !of.is_inbound).count();
                assert!(senders == 0 || counters[0].contains("0x0"), "{}", &text[..end]);
            }
        }
    }
}

#[test]
fn a_policy_without_a_template_passes_in_the_clear_and_is_told() {
    let states: String = printed().split("src 10.1.0.0").next().unwrap().into();
    let policy = |ends: &str, direction: &str| {
        format!("src 10.1.0.0/24 dst {ends}\n\tdir {direction} priority 100 ptype main\n")
    };
    let told = |policies: String| {
        let import =
            import(&format!("{states}{policies}"), &["192.0.2.1"]).unwrap_or_else(|why| panic!("{why}"));
        let bypasses = import.plan.policies.iter().filter(|policy| policy.verb == PolicyVerb::Bypass).count();
        (bypasses, import.notes)
    };
    let clear = "line 18: 10.1.0.0/24 to 10.2.0.0/24 passes in the clear: the policy has no tmpl";
    let cut = policy("10.2.0.0/24", "out");
    let last = format!("{clear}; it is the last policy, so the input may be cut off");
    assert_eq!(told(cut.clone()), (1, vec![last]));
    for next in ["fwd", "out action block"] {
        let (bypasses, mut notes) = told(format!("{cut}{}", policy("10.3.0.0/24", next)));
        notes.retain(|note| !note.contains("(fwd)"));
        assert_eq!((bypasses, notes), (1, vec![clear.to_string()]), "{next}");
    }
    // IKE's own packets are always in the clear.
    let (bypasses, notes) = told(policy("192.0.2.2/32 proto udp dport 500", "out"));
    assert_eq!((bypasses, notes), (1, Vec::new()));
}

/// Without its mark, interface number or interface a policy would let packets pass in the clear that it does not mean.
#[test]
fn what_is_of_some_packets_lets_no_others_pass() {
    let clear = "src 10.1.0.0/24 dst 10.3.0.0/24DEV\n\tdir out priority 50 ptype main\n";
    let with = |dev: &str, more: &str| format!("{}{}{more}", printed(), clear.replace("DEV", dev));
    for (more, of) in [
        ("\tmark 0x5/0xffffffff\n", "mark 0x5"),
        ("\tif_id 0x7\n", "xfrm interface (if_id) 0x7"),
        ("\tmark 0/0xff\n\tif_id 0x7\n", "xfrm interface (if_id) 0x7"),
    ] {
        let import = import(&with("", more), &[]).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(import.plan.policies.len(), 2, "{more}");
        let [note] = &import.notes[..] else { panic!("{more}: {:?}", import.notes) };
        assert!(note.contains(&format!("what is of {of} is left out")), "{note}");
        // The association too.
        let text = printed().replacen("\tsel src", &format!("{more}\tsel src"), 1);
        let plan = self::import(&text, &[]).unwrap_or_else(|why| panic!("{why}")).plan;
        assert_eq!((plan.associations.len(), plan.associations[0].is_inbound), (1, true), "{more}");
    }
    let labelled = import(&with("", "\tsecurity context system_u:object_r:ipsec_spd_t:s0 \n"), &[]).unwrap();
    assert_eq!(labelled.plan.policies.len(), 2);
    let [note] = &labelled.notes[..] else { panic!("{:?}", labelled.notes) };
    assert!(note.ends_with("what is of a security label is left out: no packet of Weir's has one"), "{note}");
    let labelled = printed().replacen(
        "\tsel src 0.0.0.0/0",
        "\tsecurity context system_u:object_r:ipsec_spd_t:s0 \n\tsel src 0.0.0.0/0",
        1,
    );
    let labelled = import(&labelled, &["192.0.2.1"]).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(labelled.plan.associations.iter().map(|plan| plan.is_inbound).collect::<Vec<_>>(), [true]);
    let note = &labelled.notes[0];
    assert!(note.starts_with("line 8: what is of a security label is left out"), "{note}");
    let unmarked = import(&with("", "\tmark 0/0xff\n"), &[]).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(unmarked.plan.policies.len(), 3, "packets here have no mark");
    let why = refused(&with(" dev eth0", ""), &[]);
    assert!(why.starts_with("line 32: a policy of one interface (dev) lets pass in the clear"), "{why}");
    // What it discards or protects is more than meant, and nothing that it does not mean passes.
    let blocked = clear.replace("DEV", " dev eth0").replace("dir out", "dir out action block");
    let import = import(&(printed() + &blocked), &[]).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(import.notes, ["line 32: dev is left out: an esp has one port outside"]);
}

/// Two tunnels between the same gateways without reqid, which only their selectors tell apart.
#[test]
fn an_association_serves_the_policies_of_its_selector() {
    let any = "sel src 0.0.0.0/0 dst 0.0.0.0/0";
    let first = printed().replace(" reqid 1", "");
    let first = first
        .replacen(any, "sel src 10.1.0.0/24 dst 10.2.0.0/24", 1)
        .replacen(any, "sel src 10.2.0.0/24 dst 10.1.0.0/24", 1)
        .replace("proto esp mode", "proto esp reqid 0 mode")
        .replace("1001 mode", "1001 reqid 0 mode")
        .replace("2001 mode", "2001 reqid 0 mode");
    let second = first.replace("10.1.0.0/24", "10.3.0.0/24").replace("10.2.0.0/24", "10.4.0.0/24");
    let second = second
        .replace(KEY, &KEY.replace("0102", "2102"))
        .replace(OTHER, &OTHER.replace("1112", "3112"))
        .replace("00001001", "00001003")
        .replace("00002001", "00002003");
    let served = |text: &str| -> Vec<_> {
        let import = import(text, &[]).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(import.notes, [""; 0]);
        import.plan.policies.iter().map(|of| of.associations.join(" ")).collect()
    };
    let text = format!("{first}{second}");
    assert_eq!(served(&text), ["in-00002003", "out-00001003", "in-00002001", "out-00001001"]);
    // A wider selector takes all, and one of a protocol or of ports a part.
    let wide = text.replace("sel src 10.1.0.0/24", "sel src 10.1.0.0/16");
    assert_eq!(served(&wide), served(&text));
    let wide = "sel src 10.1.0.0/24 dst 10.2.0.0/24";
    for narrow in ["sel src 10.1.0.0/25 dst 10.2.0.0/24", &format!("{wide} proto tcp dport 80")] {
        let why = refused(&text.replacen(wide, narrow, 1), &[]);
        assert!(why.contains("SPI 0x1001 takes a part of what this policy names (sel)"), "{why}");
    }
}

/// An association takes packets of one family inside, unless it says `af-unspec`: of all addresses of IPv4 none is of IPv6.
#[test]
fn an_association_of_one_family_serves_no_policy_of_the_other() {
    let v6 = printed().replace("10.1.0.0/24", "fd01::/64").replace("10.2.0.0/24", "fd02::/64");
    let verbs = |text: &str| -> Vec<_> {
        let import = import(text, &["192.0.2.1"]).unwrap_or_else(|why| panic!("{why}"));
        import.plan.policies.iter().map(|of| of.verb).collect()
    };
    assert_eq!(verbs(&v6), [PolicyVerb::Protect; 2]);
    assert_eq!(verbs(&v6.replace(" af-unspec", "")), [PolicyVerb::Discard; 2]);
    assert_eq!(verbs(&printed().replace(" af-unspec", "")), [PolicyVerb::Protect; 2]);
}

/// The kernel asks such a policy of all that it forwards, either way, and no policy here is like that.
#[test]
fn a_policy_of_what_is_forwarded_alone_is_told_and_refuses_nothing() {
    let tunnel = [(true, PolicyVerb::Protect), (false, PolicyVerb::Protect)];
    let with = |selects: &str, of: &str| {
        let text = format!("{}src 10.9.0.0/24 dst 10.1.0.0/24{selects}\n\tdir fwd {of}\n", printed());
        let import = import(&text, &[]).unwrap_or_else(|why| panic!("{why}"));
        let verbs = import.plan.policies.iter().map(|of| (of.is_inbound, of.verb)).collect::<Vec<_>>();
        assert_eq!(verbs, tunnel, "{selects} {of}");
        import.notes
    };
    let template = "priority 50 ptype main\n\ttmpl src 192.0.2.2 dst 192.0.2.1";
    for (selects, of) in [
        ("", "action block priority 50 ptype main"),
        ("", "priority 50 ptype main"),
        (" dev eth0", "priority 50 ptype main"),
        (" dev eth0", "action block priority 50 ptype main"),
        (" proto icmp type 8 code 0", "priority 50 ptype main"),
        ("", &format!("{template}\n\t\tproto esp reqid 1 mode tunnel\n\t\tlevel use")),
        ("", &format!("{template}\n\t\tproto comp reqid 1 mode tunnel")),
        ("", template),
    ] {
        let [note] = &with(selects, of)[..] else { panic!("{selects} {of}") };
        let wanted = "line 32: a policy of what the kernel forwards (fwd) is left out";
        assert!(note.starts_with(wanted), "{note}");
    }
    // No packet of Weir's is of this one.
    assert_eq!(with("", "priority 50 ptype main\n\tif_id 0x7"), [""; 0]);
    // The half of direction `in` says what is left out, once.
    let dev = printed().replace("dst 10.1.0.0/24", "dst 10.1.0.0/24 dev eth0");
    assert_eq!(import(&dev, &[]).unwrap().notes, ["line 26: dev is left out: an esp has one port outside"]);
}

/// A window of 0 is none, and each association here has one, so it is as long as can be.
#[test]
fn an_association_without_a_window_has_the_longest() {
    let text = printed().replace("replay_window 1024", "replay_window 0");
    let import = import(&text, &[]).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(import.plan.associations.iter().map(|of| of.window).collect::<Vec<_>>(), [64, 1024]);
    assert_eq!(import.notes, ["line 15: the kernel looks for no replays; here the window has 1024 packets"]);
}

/// The policy discards, as the kernel does while IKE is busy.
#[test]
fn a_policy_without_an_association_discards() {
    let text = printed().replacen("proto esp reqid 1", "proto esp reqid 2", 1);
    let import = import(&text, &["192.0.2.1"]).unwrap_or_else(|why| panic!("{why}"));
    let verbs: Vec<_> = import.plan.policies.iter().map(|policy| (policy.is_inbound, policy.verb)).collect();
    assert_eq!(verbs, [(true, PolicyVerb::Protect), (false, PolicyVerb::Discard)]);
    let [note] = &import.notes[..] else { panic!("{:?}", import.notes) };
    assert!(note.starts_with("line 18: no association is there for this policy, so it discards"), "{note}");
}

/// An inbound key may have been used: the packets that the kernel has received do not matter.
#[test]
fn an_inbound_key_may_have_been_used() {
    let used = printed().replacen("seq 0x0, oseq-hi", "seq 0x9, oseq-hi", 2);
    import(&used, &[]).unwrap_or_else(|why| panic!("{why}"));
    let (out, back) = used.split_at(used.find("src 192.0.2.2 dst").unwrap());
    let passed = "\tcrypto offload parameters: dev eth0 dir in mode packet\n\t  84(bytes), 3(packets)\n\tsel src 0.0.0.0/0";
    import(&(out.to_string() + &back.replacen("\tsel src 0.0.0.0/0", passed, 1)), &[])
        .unwrap_or_else(|why| panic!("{why}"));
}

/// Who recorded what the kernel received cannot send it once more.
#[test]
fn what_the_kernel_received_is_not_received_again() {
    let folder = Folder::new("import-received");
    let received = |text: &str| {
        let import = super::read(text, &folder.0, &[]).unwrap_or_else(|why| panic!("{why}"));
        import.write_keys().unwrap();
        let key = PathBuf::from(import.plan.associations[1].key_file.clone().unwrap());
        let mark = MarkKind::Received.path(&key);
        let fingerprint = key.file_stem().unwrap().to_str().unwrap();
        let fingerprint = u128::from_str_radix(fingerprint, 16).unwrap().to_be_bytes();
        (MarkKind::Received.check(&mark, Some(fingerprint)).unwrap(), mark)
    };
    let counted = |counter: &str| {
        let text = printed();
        let (out, back) = text.split_at(text.find("src 192.0.2.2 dst").unwrap());
        out.to_string() + &back.replacen("seq-hi 0x0, seq 0x0", counter, 1)
    };
    let (next, mark) = received(&counted("seq-hi 0x0, seq 0x0"));
    assert!(next == 1 && !mark.exists());
    // The key is there already, as of an import before.
    assert_eq!(received(&counted("seq-hi 0x1, seq 0x9")).0, 0x1_0000_000a);
    assert_eq!(received(&counted("seq-hi 0x0, seq 0x5")).0, 0x1_0000_000a, "it says more");
    // A number of 32 bits, of an association whose mark is somebody's who uses it.
    let short =
        printed().replace("replay-window 0 flag af-unspec esn", "replay-window 32 flag af-unspec").replace(
            "anti-replay esn context:\n\t seq-hi 0x0, seq 0x0, oseq-hi 0x0, oseq 0x0\n",
            "anti-replay context: seq 0x7, oseq 0x0, bitmap 0x0000007f\n",
        );
    fs::remove_file(&mark).unwrap();
    assert_eq!(received(&short).0, 8);
    fs::remove_file(&mark).unwrap();
    received(&short);
    let user = fs::File::open(&mark).unwrap();
    user.lock().unwrap();
    assert_eq!(received(&short.replace("seq 0x7", "seq 0x70")).0, 8);
    drop(user);
    assert_eq!(received(&short.replace("seq 0x7", "seq 0x70")).0, 0x71);
    fs::write(&mark, "?").unwrap();
    let import = super::read(&short, &folder.0, &[]).unwrap_or_else(|why| panic!("{why}"));
    let why = import.write_keys().unwrap_err();
    assert!(why.contains("this mark is damaged"), "{why}");
}

#[test]
fn key_files_are_made_once() {
    let folder = Folder::new("import");
    let read = |text: &str| super::read(text, &folder.0, &[]).unwrap_or_else(|why| panic!("{why}"));
    let import = read(&printed());
    import.write_keys().unwrap();
    let [out, back] = [0, 1].map(|of| PathBuf::from(import.plan.associations[of].key_file.clone().unwrap()));
    assert_eq!(fs::read_to_string(&out).unwrap(), KEY);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&out), mode(&back), mode(&MarkKind::Sent.path(&out))], [0o600; 3]);
    assert!(!MarkKind::Sent.path(&back).exists());
    // A mark that `weir up` has written since stays, also where the key was removed meanwhile.
    let fingerprint = out.file_stem().unwrap().to_str().unwrap();
    let mark = format!("weir sequence\nnext 00000000000000005001\nkey {fingerprint}\n");
    fs::write(MarkKind::Sent.path(&out), &mark).unwrap();
    read(&printed()).write_keys().unwrap();
    fs::remove_file(&out).unwrap();
    read(&printed()).write_keys().unwrap();
    assert_eq!(
        (fs::read_to_string(MarkKind::Sent.path(&out)).unwrap(), fs::read_to_string(&out).unwrap()),
        (mark, KEY.into())
    );
    // Another key under the same SPI has a file and a mark of its own.
    let other = read(&printed().replace(KEY, &OTHER.replace('1', "2")));
    other.write_keys().unwrap();
    let other = PathBuf::from(other.plan.associations[0].key_file.clone().unwrap());
    assert!(other != out && fs::read_to_string(MarkKind::Sent.path(&other)).unwrap() == "1\n");
    // Neither a key nor a mark is replaced that is something else.
    fs::write(&out, OTHER).unwrap();
    let why = read(&printed()).write_keys().unwrap_err();
    assert!(why.contains("this is another key") && fs::read_to_string(&out).unwrap() == OTHER, "{why}");
    fs::remove_file(&out).unwrap();
    fs::write(MarkKind::Sent.path(&out), [0xff]).unwrap();
    let why = read(&printed()).write_keys().unwrap_err();
    assert!(why.contains("beside it") && why.contains("says no sequence number"), "{why}");
    assert_eq!(fs::read(MarkKind::Sent.path(&out)).unwrap(), [0xff]);
    assert!(!out.exists());
    // Nothing is left of a file that cannot be made: here its name is a directory's.
    let taken = folder.0.join("taken.key");
    fs::create_dir(&taken).unwrap();
    assert!(new_key::create(&taken, KEY).is_err());
    assert!(!folder.0.join("taken.key.new").exists());
}
