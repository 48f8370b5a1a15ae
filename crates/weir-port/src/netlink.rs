//! Netlink requests with one acknowledgement or a list as their answer: errors as sentences, with the kernel's own explanation where it
//! gave one; and several requests in one call.

use netlink_bindings::traits::{NetlinkChained, NetlinkRequest, Protocol};
use netlink_socket2::{NetlinkSocket, ReplyError};

use crate::error::{Doing, PortError, Result};
use crate::netlink_bytes::message;

/// Sends `request` and waits for its acknowledgement.
pub fn acknowledged<R: NetlinkRequest>(
    socket: &mut NetlinkSocket,
    request: &R,
    doing: impl Fn() -> String,
) -> Result<()> {
    socket.request(request).doing(&doing)?.recv_ack().map_err(|error| explained(error, doing()))
}

/// Hands each item of the list that `request` asks for to `each`.
pub fn dump<R: NetlinkRequest>(
    request: &R,
    doing: impl Fn() -> String,
    mut each: impl FnMut(R::ReplyType<'_>),
) -> Result<()> {
    let mut socket = NetlinkSocket::new();
    let mut reply = socket.request(request).doing(&doing)?;
    while let Some(item) = reply.recv() {
        each(item.map_err(|error| explained(error, doing()))?);
    }
    Ok(())
}

/// The most times that a list is read for two readings that are alike.
const READINGS: usize = 5;
/// The bytes of a queue in a list by which it is the same in two readings: `struct tcmsg` without its last word. Counters come later.
const KEY_BYTES: usize = 16;

/// [`dump`] of a list of queues from which nothing is missing.
///
/// The kernel sends a long list in parts, and counts the interfaces between them: if one goes meanwhile, another is passed over, of which
/// it says nothing (`net/sched/sch_api.c:tc_dump_qdisc`). So the list is read until two readings are alike. Limits: where queues come and go
/// all the time the last of [`READINGS`] counts.
pub fn dump_whole<R: NetlinkRequest>(
    request: &R,
    doing: impl Fn() -> String,
    mut each: impl FnMut(R::ReplyType<'_>),
) -> Result<()> {
    let read = || -> Result<Vec<Vec<u8>>> {
        let mut items = Vec::new();
        dump(&Undecoded(request), &doing, |item| items.push(item.to_vec()))?;
        Ok(items)
    };
    let key = |item: &Vec<u8>| item.first_chunk::<KEY_BYTES>().copied();
    let mut list = read()?;
    for _ in 1..READINGS {
        let before = std::mem::replace(&mut list, read()?);
        if before.iter().map(key).eq(list.iter().map(key)) {
            break;
        }
    }
    list.iter().for_each(|item| each(R::decode_reply(item)));
    Ok(())
}

/// A request whose replies are left as they are.
struct Undecoded<'a, R>(&'a R);

impl<R: NetlinkRequest> NetlinkRequest for Undecoded<'_, R> {
    type ReplyType<'buf> = &'buf [u8];

    fn protocol(&self) -> Protocol {
        self.0.protocol()
    }

    fn flags(&self) -> u16 {
        self.0.flags()
    }

    fn payload(&self) -> &[u8] {
        self.0.payload()
    }

    fn decode_reply(reply: &[u8]) -> &[u8] {
        reply
    }

    fn lookup(
        request: &[u8],
        offset: usize,
        missing: Option<u16>,
    ) -> (Vec<(&'static str, usize)>, Option<&'static str>) {
        R::lookup(request, offset, missing)
    }
}

/// A netlink error as a sentence.
pub fn explained(error: ReplyError, doing: String) -> PortError {
    if error.as_io_error().raw_os_error() == Some(libc::EPERM) {
        return PortError::of_kernel(doing, error.into());
    }
    let said =
        error.ext_ack().and_then(|ack| ack.get_msg().ok().map(|text| text.to_string_lossy().into_owned()));
    let doing = said.map_or(doing.clone(), |said| format!("{doing} (the kernel says: {said})"));
    PortError::Kernel { doing, source: error.into() }
}

/// Returns whether an error is the kernel's `code`.
pub fn is_code(error: &PortError, code: i32) -> bool {
    matches!(error, PortError::Kernel { source, .. } if source.raw_os_error() == Some(code))
}

/// Requests of rtnetlink that the kernel carries out one after the other, with as little in between as can be.
pub struct RequestBatch {
    bytes: Vec<u8>,
    count: usize,
}

/// The number of the first request, as this socket sends nothing else.
const SEQUENCE_FIRST: u32 = 1;

impl RequestBatch {
    /// A batch without requests.
    pub fn new() -> RequestBatch {
        RequestBatch { bytes: Vec::new(), count: 0 }
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Adds a request.
    pub fn push<R: NetlinkRequest>(&mut self, request: &R) {
        let Protocol::Raw { request_type, .. } = request.protocol() else {
            unreachable!("requests of rtnetlink have types of their own")
        };
        let payload = request.payload();
        let flags = request.flags() | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        self.bytes.extend(message(request_type, flags, SEQUENCE_FIRST + self.count as u32, payload));
        self.count += 1;
    }

    /// Sends the requests and waits until all are done. The kernel goes on behind one that fails; the first error is returned.
    pub fn send(self, doing: impl Fn() -> String) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let mut socket = NetlinkSocket::new();
        socket.request_chained(&self).doing(&doing)?.recv_all().map_err(|error| explained(error, doing()))
    }
}

impl NetlinkChained for RequestBatch {
    fn protonum(&self) -> u16 {
        libc::NETLINK_ROUTE as u16
    }

    fn payload(&self) -> &[u8] {
        &self.bytes
    }

    fn chain_len(&self) -> usize {
        self.count
    }

    fn get_index(&self, sequence: u32) -> Option<usize> {
        let index = sequence.checked_sub(SEQUENCE_FIRST)? as usize;
        (index < self.count).then_some(index)
    }

    fn name(&self, _index: usize) -> &'static str {
        "tc"
    }

    fn supports_ack(&self, index: usize) -> Option<bool> {
        (index < self.count).then_some(true)
    }
}
