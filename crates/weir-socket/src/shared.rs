//! The ports that a stack has on an interface that is the kernel's too.
//!
//! ```text
//! hold:  the kernel gives the port to nobody else (a bound socket) --> its packets come to the stack (a bit that XDP reads)
//! drop of the last hold: its packets go to the kernel --> the kernel has the port
//! ```
//!
//! Rule: a port is held by every socket that is bound to it, by every listener, and by every connection, half-open and closing ones included. So an
//! answer to a packet of the stack comes to the stack, and the side that does not have a port is the one that refuses its packets. A hold of any
//! address is a hold of each address of its family.
//!
//! Owner: one thread at a time, by a lock of its own that is held for a table's look-up and, where a port is held first and last, for the kernel's
//! calls. A worker takes it for the first and the last connection at a local address alone, and so may wait there for as long as these calls take.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_port::bpf::bound::{BoundPorts, Transport};
use weir_port::netns::NetNs;
use weir_port::reservation::PortReservation;

use crate::control::EPHEMERAL;
use crate::in_use::{none_free, refused_by_kernel};
use crate::stack::Stack;

/// A port of an address; the address is given by its number.
type Place = (Transport, usize, u16);

/// See the head of the file.
pub(crate) struct SharedPorts {
    bound: Arc<BoundPorts>,
    netns: NetNs,
    ifindex: u32,
    held: Mutex<HashMap<Place, Held>>,
}

/// The holds of a port.
struct Held {
    holds: u32,
    /// The reservation in the kernel; none if a worker was the first to hold the port.
    _reservation: Option<PortReservation>,
}

/// A hold of a port: the port is the stack's while this lives.
pub(crate) struct PortHold {
    ports: Arc<SharedPorts>,
    transport: Transport,
    address: SocketAddr,
}

impl SharedPorts {
    /// The ports of an interface of this thread's namespace, none held.
    pub(crate) fn new(bound: Arc<BoundPorts>, ifindex: u32) -> weir_port::Result<SharedPorts> {
        Ok(SharedPorts { bound, netns: NetNs::current()?, ifindex, held: Mutex::default() })
    }

    /// Holds a port.
    ///
    /// # Errors
    /// `AddrInUse` if the kernel has given it to somebody.
    pub(crate) fn hold(self: &Arc<Self>, transport: Transport, address: SocketAddr) -> io::Result<PortHold> {
        self.hold_with(transport, address, |place| {
            let (transport, number, port) = place;
            let address = self.in_kernel(self.bound.addresses()[number].address, port);
            let reserved = PortReservation::new(&self.netns, transport, address);
            reserved.map(Some).map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => refused_by_kernel(transport, address),
                _ => error,
            })
        })
    }

    /// Holds a port that is held already, as the port of a connection is by its listener or by the application that asked for it. The kernel is not
    /// asked in any case.
    pub(crate) fn hold_on(self: &Arc<Self>, transport: Transport, address: SocketAddr) -> Option<PortHold> {
        self.hold_with(transport, address, |_| Ok(None)).ok()
    }

    /// Holds a port; `reserve` is called for each of its places that nobody holds.
    fn hold_with(
        self: &Arc<Self>,
        transport: Transport,
        address: SocketAddr,
        mut reserve: impl FnMut(Place) -> io::Result<Option<PortReservation>>,
    ) -> io::Result<PortHold> {
        let mut held = self.lock();
        let mut new = Vec::new();
        for number in self.numbers(address.ip()) {
            let place = (transport, number, address.port());
            if !held.contains_key(&place) {
                new.push((place, Held { holds: 0, _reservation: reserve(place)? }));
            }
        }
        // Nothing fails from here on.
        for (place, one) in new {
            held.insert(place, one);
            let (transport, number, port) = place;
            self.bound.set(number, transport, port, true);
        }
        for number in self.numbers(address.ip()) {
            if let Some(held) = held.get_mut(&(transport, number, address.port())) {
                held.holds += 1;
            }
        }
        Ok(PortHold { ports: Arc::clone(self), transport, address })
    }

    /// Gives every port back to the kernel: the stack has ended.
    pub(crate) fn release_all(&self) {
        self.lock().clear();
    }

    /// The numbers of an address, or of all addresses of its family if it is unspecified.
    fn numbers(&self, address: IpAddr) -> impl Iterator<Item = usize> + '_ {
        let is_it = move |own: IpAddr| match address.is_unspecified() {
            true => own.is_ipv4() == address.is_ipv4(),
            false => own == address,
        };
        self.bound.addresses().iter().enumerate().filter(move |(_, own)| is_it(own.address)).map(|(at, _)| at)
    }

    fn in_kernel(&self, address: IpAddr, port: u16) -> SocketAddr {
        match address {
            IpAddr::V6(address) if address.is_unicast_link_local() => {
                SocketAddrV6::new(address, port, 0, self.ifindex).into()
            }
            _ => SocketAddr::new(address, port),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stack {
    /// Makes a port the stack's and not the kernel's, if the stack is on an interface of the kernel's.
    pub(crate) fn hold(&self, transport: Transport, address: SocketAddr) -> io::Result<Option<PortHold>> {
        self.ports().map(|ports| ports.hold(transport, address)).transpose()
    }

    /// Holds the first port, of those that `next` names, that the kernel has not given to anybody.
    pub(crate) fn hold_any(
        &self,
        transport: Transport,
        address: IpAddr,
        mut next: impl FnMut() -> io::Result<u16>,
    ) -> io::Result<(u16, Option<PortHold>)> {
        for _ in EPHEMERAL {
            let port = next()?;
            match self.hold(transport, SocketAddr::new(address, port)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                held => return Ok((port, held?)),
            }
        }
        Err(none_free(address))
    }
}

impl Drop for PortHold {
    fn drop(&mut self) {
        let PortHold { ports, transport, address } = self;
        let mut held = ports.lock();
        for number in ports.numbers(address.ip()) {
            let place = (*transport, number, address.port());
            // No hold is left in a stack that has ended.
            let Some(one) = held.get_mut(&place) else { continue };
            one.holds -= 1;
            if one.holds == 0 {
                ports.bound.set(number, *transport, address.port(), false);
                held.remove(&place);
            }
        }
    }
}

impl std::fmt::Debug for PortHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PortHold({:?} {})", self.transport, self.address)
    }
}
