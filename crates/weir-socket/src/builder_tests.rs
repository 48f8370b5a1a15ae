//! Addresses, gateways and buckets that a stack cannot have are refused, each in a sentence.

use super::*;

fn refusal(builder: StackBuilder) -> String {
    let refused = builder.open_in_memory(vec![MemoryPort::default()]).expect_err("it cannot be meant");
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    refused.to_string()
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_do() {
    let with = || StackBuilder::default().address("192.0.2.1/24");
    let many = (1..=ADDRESSES_MAX)
        .fold(StackBuilder::default(), |builder, host| builder.address(format!("192.0.2.{host}/24")));
    let of = |address: &str| StackBuilder::default().address(address);
    let no_root_needed: [(StackBuilder, &str); 22] = [
        (many, "63 or fewer"),
        (StackBuilder::default(), "give it one"),
        (of("192.0.2.1"), "write for example 192.0.2.1/24"),
        (of("224.0.0.1/24"), "the address of a group, and no station's"),
        (of("240.0.0.1/24"), "240.0.0.1 is reserved, and no station's"),
        (of("192.0.2.0/24"), "192.0.2.0 is the network 192.0.2.0/24 itself: write an address in it"),
        (of("192.0.2.255/24"), "192.0.2.255 is the broadcast address of 192.0.2.0/24: write another"),
        (with().address("192.0.2.1/25"), "192.0.2.1 is given twice: give it once"),
        (with().gateway("somewhere"), "no address"),
        (with().gateway("198.51.100.1"), "which has 192.0.2.0/24: give a gateway in one"),
        (with().gateway("2001:db8::1"), "no network of the stack"),
        (with().gateway("192.0.2.1"), "is the stack's own address"),
        (with().gateway("192.0.2.255"), "the broadcast address of 192.0.2.0/24"),
        (with().gateway("127.0.0.1"), "the loopback address"),
        (with().gateway("192.0.2.3").gateway("192.0.2.4"), "192.0.2.4 is a second gateway"),
        (with().neighbour("nobody", [2; 6]), "no address"),
        (with().sockets(0), "1 or more"),
        (with().tcp_keepalive_s(0), "a TCP keepalive of 0 s: give 1 to 32767 s"),
        (with().tcp_keepalive_s(32_768), "give 1 to 32767 s"),
        (with().bucket_bits(8), "7 bits or fewer"),
        (with().cores([999]), "core 999: Invalid argument (os error 22): name cores"),
        (with().cores([]).buffer_frames_max(0), "1 or more"),
    ];
    for (builder, told) in no_root_needed {
        let text = refusal(builder);
        assert!(text.contains(told), "{text}");
    }
    let nobody = with().open_in_memory(Vec::new()).expect_err("no worker");
    assert!(nobody.to_string().contains("from 1"), "{nobody}");
    let nowhere = with().guardian("/nonexistent/weir").open("veth-a").expect_err("no guardian");
    assert!(nowhere.to_string().contains("say where it is"), "{nowhere}");
}
