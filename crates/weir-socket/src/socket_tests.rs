//! UDP sockets as an application sees them, on two stacks in memory.

use super::*;

fn pair() -> [Stack; 2] {
    let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24").unwrap();
    [left, right]
}

#[test]
fn rings_without_pause_do_not_put_a_timeout_off() {
    const LOOKS_MAX: u32 = 1_000_000;
    let [left, _right] = pair();
    let socket = UdpSocket::bind(&left, "192.0.2.1:0").unwrap();
    let (ringer, mut looks) = (socket.ringer(), 0);
    let is_so = socket.wait_until(Some(Duration::from_millis(1)), |_| {
        // It comes within each last look before the thread sleeps.
        ringer.published();
        looks += 1;
        looks == LOOKS_MAX
    });
    assert!(!is_so.unwrap(), "it still waited after {looks} looks");
}
