//! Reassembly of packets that come in fragments: ESP, which is opened whole, and what is sealed or decided on whole.
//!
//! ```text
//! fragments of one packet: source, destination, protocol and identification are alike
//! whole packet = headers of the first fragment, without the fragment's fields | data of all, in order
//! ```
//!
//! Where only ESP is put together, a fragment of UDP does not show its ports, unless it is the first. So fragments of UDP wait for the first,
//! which tells whether the packet is ESP; if not, they and all that follow go on as they are. So do those of IKE, which policies do not ask for.
//!
//! | bound | |
//! |---|---|
//! | fragments that wait | [`FRAGMENTS_MAX`]; one more makes the oldest packet fail |
//! | packets whose fragments wait | [`DATAGRAMS_MAX`]; likewise |
//! | time | [`PATIENCE_NS`] from the first that came |
//!
//! Rule: fragments that overlap are an attack, and the packet fails (RFC 5722). A fragment that came twice is refused the second time. A
//! fragment leaves this state by one way: in a whole packet, as it is, or refused with a reason.
//!
//! Owner: one worker. Source: RFC 791 section 3.2, RFC 8200 section 4.5, RFC 4303 section 3.4.1, RFC 3168 section 5.3 (ECN), RFC 6946 (a
//! fragment that is the whole packet). Limits: a packet has to fit into the memory of its first fragment.

use std::collections::VecDeque;

use weir_core::drops::{Count, DropReason};
use weir_core::packet::Packet;

use crate::esp::{IKE_PORT, UDP_LEN, UDP_PORT};
use crate::ip::{self, AddressPair, FRAGMENT_HEADER_LEN, IPV6_LEN, IpFamily, IpHeaders, number};
use crate::room::Room;

/// The most fragments that wait.
pub const FRAGMENTS_MAX: u64 = 64;
/// The most packets of which something is remembered.
pub const DATAGRAMS_MAX: usize = 64;
/// The time that fragments wait for the others, in nanoseconds: as long as with Linux.
pub const PATIENCE_NS: u64 = 30_000_000_000;

/// The unit of offsets.
const UNIT: usize = 8;
const CE: u8 = 3;

/// A fragment of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    of: Datagram,
    /// The place of its data in the packet's.
    begin: usize,
    end: usize,
    is_last: bool,
    /// The course of the packet, if the fragment tells.
    course: Option<Course>,
}

/// The course of a packet that comes in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Join,
    /// The fragments go on as they are; whether they are IKE's.
    Pass {
        is_ike: bool,
    },
}

/// The packet that a fragment is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Datagram {
    ends: AddressPair,
    protocol: u8,
    identification: u32,
}

impl Fragment {
    /// Reads a fragment with these headers, all of them, of ESP or UDP, to put ESP together. UDP to `udp_ports` may carry it.
    ///
    /// # Errors
    /// If it contradicts itself, or its packet would be longer than a packet can be.
    pub fn of_esp(packet: &[u8], headers: &IpHeaders, udp_ports: &[u16]) -> Result<Fragment, DropReason> {
        let (mut fragment, data) = Fragment::read(packet, headers)?;
        fragment.course = match headers.next() {
            number::ESP => Some(Course::Join),
            _ => (fragment.begin == 0).then(|| match is_esp_in_udp(data, udp_ports) {
                true => Course::Join,
                false => Course::Pass { is_ike: is_ike(data, DESTINATION_PORT_AT) },
            }),
        };
        Ok(fragment)
    }

    /// Reads a fragment with these headers, all of them, of UDP that a gateway itself sends, to find IKE; `is_to_join` says whether anything
    /// else is put together.
    ///
    /// # Errors
    /// As of [`Fragment::of_esp`].
    pub fn of_own_udp(packet: &[u8], headers: &IpHeaders, is_to_join: bool) -> Result<Fragment, DropReason> {
        let (mut fragment, data) = Fragment::read(packet, headers)?;
        fragment.course = (fragment.begin == 0).then(|| match is_ike(data, SOURCE_PORT_AT) {
            false if is_to_join => Course::Join,
            is_ike => Course::Pass { is_ike },
        });
        Ok(fragment)
    }

    /// Reads a fragment with these headers, all of them, of a packet that is put together whatever it is.
    ///
    /// # Errors
    /// As of [`Fragment::of_esp`].
    pub fn of_any(packet: &[u8], headers: &IpHeaders) -> Result<Fragment, DropReason> {
        Fragment::read(packet, headers)
            .map(|(fragment, _)| Fragment { course: Some(Course::Join), ..fragment })
    }

    /// Reads a fragment, and its data.
    fn read<'a>(packet: &'a [u8], headers: &IpHeaders) -> Result<(Fragment, &'a [u8]), DropReason> {
        let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let (identification, more) = match headers.family() {
            IpFamily::V4 => (word(4).into(), word(6) & 0x2000 != 0),
            IpFamily::V6 => {
                let at = headers.end() - FRAGMENT_HEADER_LEN;
                (u32::from(word(at + 4)) << 16 | u32::from(word(at + 6)), word(at + 2) & 1 != 0)
            }
        };
        let data = packet.get(headers.end()..headers.packet_len()).ok_or(DropReason::Malformed)?;
        let begin = headers.fragment_offset(packet);
        let end = begin + data.len();
        let is_torn = more && (data.is_empty() || data.len() % UNIT != 0);
        if is_torn || end + headers.end() > usize::from(u16::MAX) {
            return Err(DropReason::Malformed);
        }
        let (ends, protocol) = (AddressPair::of(packet, headers.family()), headers.next());
        let of = Datagram { ends, protocol, identification };
        Ok((Fragment { of, begin, end, is_last: !more, course: None }, data))
    }
}

/// Returns whether the first bytes of a packet of UDP are those of ESP.
fn is_esp_in_udp(data: &[u8], udp_ports: &[u16]) -> bool {
    let Some((header, data)) = data.split_first_chunk::<UDP_LEN>() else { return false };
    // Four zeros would be IKE.
    let has_spi = data.first_chunk::<4>().is_some_and(|spi| *spi != [0; 4]);
    has_spi && udp_ports.contains(&u16::from_be_bytes([header[2], header[3]]))
}

const SOURCE_PORT_AT: usize = 0;
const DESTINATION_PORT_AT: usize = 2;

/// Returns whether the first bytes of a packet of UDP are those of IKE, by the port of the gateway, which is at this place.
fn is_ike(data: &[u8], port_at: usize) -> bool {
    let Some((header, data)) = data.split_first_chunk::<UDP_LEN>() else { return false };
    match u16::from_be_bytes([header[port_at], header[port_at + 1]]) {
        IKE_PORT => true,
        UDP_PORT => data.starts_with(&[0; 4]),
        _ => false,
    }
}

/// The fate of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// The fragment waits for others, or is refused.
    Taken,
    /// The packet is whole: all its fragments, in the order of their data.
    Whole,
    /// The packet is none to put together: its fragments so far, in the order in which they came.
    Passes,
    /// The packet is IKE of the gateway, and passes in its fragments whatever policies say: those so far, as above.
    PassesAsIke,
}

impl Gathered {
    fn passing(is_ike: bool) -> Gathered {
        if is_ike { Gathered::PassesAsIke } else { Gathered::Passes }
    }
}

/// The fragments that wait for others.
#[derive(Debug)]
pub struct Reassembly<P> {
    /// The packets, the oldest first.
    partial: VecDeque<Partial<P>>,
    held: Count,
    refused: Vec<(P, DropReason)>,
}

/// A packet of which fragments are missing.
#[derive(Debug)]
struct Partial<P> {
    of: Datagram,
    since_ns: u64,
    state: State,
    /// The fragments that wait, in the order in which they came.
    fragments: Vec<(Fragment, P)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Fragments wait.
    Waiting,
    /// The packet is none to put together; none waits.
    Passing { is_ike: bool },
    /// The packet failed; none waits.
    Failed,
}

impl<P> Default for Reassembly<P> {
    fn default() -> Reassembly<P> {
        Reassembly { partial: VecDeque::new(), held: Count::default(), refused: Vec::new() }
    }
}

impl<P: Packet> Reassembly<P> {
    /// Takes a fragment; what is whole, or passes, is put behind `out`.
    pub fn take(&mut self, fragment: Fragment, packet: P, now_ns: u64, out: &mut Vec<P>) -> Gathered {
        self.expire(now_ns);
        if fragment.begin == 0 && fragment.is_last {
            out.push(packet);
            return match fragment.course {
                Some(Course::Join) => Gathered::Whole,
                Some(Course::Pass { is_ike }) => Gathered::passing(is_ike),
                None => Gathered::Passes,
            };
        }
        let place = self.place_of(&fragment, now_ns);
        if let Some(Course::Pass { is_ike }) = fragment.course {
            self.partial[place].state = State::Passing { is_ike };
            let waiting = std::mem::take(&mut self.partial[place].fragments);
            self.release(waiting, out);
        }
        let partial = &mut self.partial[place];
        match partial.state {
            State::Passing { is_ike } => {
                out.push(packet);
                return Gathered::passing(is_ike);
            }
            State::Failed => {
                self.refused.push((packet, DropReason::ReassemblyFailed));
                return Gathered::Taken;
            }
            State::Waiting => {}
        }
        let is_same = |(other, _): &(Fragment, P)| (other.begin, other.end) == (fragment.begin, fragment.end);
        if partial.fragments.iter().any(is_same) {
            self.refused.push((packet, DropReason::ReassemblyFailed));
            return Gathered::Taken;
        }
        self.held.add(packet.len_bytes());
        partial.fragments.push((fragment, packet));
        if partial.contradicts(&fragment) {
            self.fail(place, DropReason::ReassemblyFailed);
        } else if partial.is_whole() {
            let mut whole = self.partial.remove(place).expect("it is there").fragments;
            whole.sort_unstable_by_key(|(fragment, _)| fragment.begin);
            self.release(whole, out);
            return Gathered::Whole;
        } else if self.held.packets > FRAGMENTS_MAX {
            self.fail_oldest();
        }
        Gathered::Taken
    }

    /// Gives up the packets whose fragments have waited too long.
    pub fn expire(&mut self, now_ns: u64) {
        while self.partial.front().is_some_and(|oldest| oldest.since_ns + PATIENCE_NS <= now_ns) {
            self.fail(0, DropReason::ReassemblyTimeout);
            self.partial.pop_front();
        }
    }

    /// The time at which fragments have waited too long.
    pub fn due_ns(&self) -> Option<u64> {
        self.partial.front().map(|oldest| oldest.since_ns + PATIENCE_NS)
    }

    /// Takes out a fragment that is refused, and why.
    pub fn take_refused(&mut self) -> Option<(P, DropReason)> {
        self.refused.pop()
    }

    /// The fragments that wait.
    pub fn held(&self) -> Count {
        self.held
    }

    /// The place of a fragment's packet, which is remembered from here on.
    fn place_of(&mut self, fragment: &Fragment, now_ns: u64) -> usize {
        let of = &fragment.of;
        if let Some(place) = self.partial.iter().position(|partial| partial.of == *of) {
            if self.partial[place].state == State::Waiting || fragment.begin != 0 {
                return place;
            }
            // Another packet begins that has the same identification.
            self.partial.remove(place);
        }
        if self.partial.len() == DATAGRAMS_MAX {
            // A packet of which none waits has mostly come as a whole.
            let none_waits = self.partial.iter().position(|partial| partial.fragments.is_empty());
            let place = none_waits.unwrap_or(0);
            self.fail(place, DropReason::ReassemblyFailed);
            self.partial.remove(place);
        }
        let fragments = Vec::new();
        self.partial.push_back(Partial { of: *of, since_ns: now_ns, state: State::Waiting, fragments });
        self.partial.len() - 1
    }

    /// Refuses the fragments of the oldest packet of which some wait.
    fn fail_oldest(&mut self) {
        if let Some(place) = self.partial.iter().position(|partial| !partial.fragments.is_empty()) {
            self.fail(place, DropReason::ReassemblyFailed);
        }
    }

    /// Refuses the fragments of a packet, also those that will come.
    fn fail(&mut self, place: usize, reason: DropReason) {
        let partial = &mut self.partial[place];
        if partial.state == State::Waiting {
            partial.state = State::Failed;
        }
        for (_, packet) in std::mem::take(&mut partial.fragments) {
            self.held.sub(packet.len_bytes());
            self.refused.push((packet, reason));
        }
    }

    fn release(&mut self, fragments: Vec<(Fragment, P)>, out: &mut Vec<P>) {
        for (_, packet) in fragments {
            self.held.sub(packet.len_bytes());
            out.push(packet);
        }
    }
}

impl<P> Partial<P> {
    /// Returns whether the newest fragment contradicts one of the others.
    fn contradicts(&self, newest: &Fragment) -> bool {
        let others = &self.fragments[..self.fragments.len() - 1];
        others.iter().any(|(other, _)| {
            let overlap = other.begin < newest.end && newest.begin < other.end;
            let behind_last =
                other.is_last && newest.end > other.end || newest.is_last && other.end > newest.end;
            overlap || behind_last || other.is_last && newest.is_last
        })
    }

    /// Returns whether no fragment is missing; none overlaps another.
    fn is_whole(&self) -> bool {
        let last = self.fragments.iter().find(|(fragment, _)| fragment.is_last);
        let sum: usize = self.fragments.iter().map(|(fragment, _)| fragment.end - fragment.begin).sum();
        last.is_some_and(|(last, _)| last.end == sum)
    }
}

/// Makes the first fragment the whole packet; `others` are the others, whole packets of IP each, in the order of their data.
///
/// # Errors
/// If the packet does not fit into the memory of the first fragment, is a fragment itself, or its marks of congestion contradict each
/// other; the bytes are meaningless then.
pub fn join<'a>(room: &mut Room, others: impl Iterator<Item = &'a [u8]>) -> Result<(), DropReason> {
    let first = IpHeaders::read_all(room.packet())?;
    room.truncate(first.packet_len());
    let family = first.family();
    let class = ip::traffic_class(room.packet(), family);
    let mut marks = 1 << (class & CE);
    for other in others {
        let headers = IpHeaders::read_all(other)?;
        let data = other.get(headers.end()..headers.packet_len()).ok_or(DropReason::Malformed)?;
        marks |= 1 << (ip::traffic_class(other, family) & CE);
        let before = room.len();
        room.grow(0, data.len())?;
        room.packet_mut()[before..].copy_from_slice(data);
    }
    match family {
        IpFamily::V4 => room.packet_mut()[6..8].fill(0),
        IpFamily::V6 => cut_fragment_header(room, &first)?,
    }
    // A mark stays; what cannot be marked was not to be, and somebody changed it.
    let is_marked = marks & 1 << CE != 0;
    if is_marked && marks & 1 != 0 {
        return Err(DropReason::ReassemblyFailed);
    }
    if is_marked {
        ip::set_traffic_class(room.packet_mut(), family, class | CE);
    }
    ip::set_len(room.packet_mut(), family)?;
    // Nobody makes fragments of fragments, and a packet of many headers is not to be put together as often.
    match IpHeaders::read_all(room.packet())?.is_fragment() {
        true => Err(DropReason::Malformed),
        false => Ok(()),
    }
}

/// Cuts the fragment header out of a packet with these headers, which end with it.
fn cut_fragment_header(room: &mut Room, headers: &IpHeaders) -> Result<(), DropReason> {
    let fragment_at = headers.end() - FRAGMENT_HEADER_LEN;
    let packet = room.packet_mut();
    let (mut next_at, mut at) = (6, IPV6_LEN);
    while at < fragment_at {
        next_at = at;
        at += ip::extension_len(packet, at)?;
    }
    packet[next_at] = headers.next();
    packet.copy_within(..fragment_at, FRAGMENT_HEADER_LEN);
    room.cut_front(FRAGMENT_HEADER_LEN);
    Ok(())
}

#[cfg(test)]
#[path = "reassembly_tests.rs"]
mod tests;
