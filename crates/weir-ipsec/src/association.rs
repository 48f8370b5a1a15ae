//! Security associations: one for each direction, with its key, its numbers and its counters.
//!
//! | outbound | inbound |
//! |---|---|
//! | 1. expired? drop | 1. expired? drop |
//! | 2. a number, or wait, or drop | 2. the whole number from its lower half; replayed or too old? drop |
//! | 3. wrap, count; 4. seal | 3. verify; 4. note the number, count; 5. unwrap |
//!
//! Rule: a packet that is not proven changes neither window nor counts; a number that was taken is never taken again, whatever becomes of
//! its packet.
//!
//! Sealing and verifying need the key alone, so another worker may do them in between ([`Outbound::wrap`], [`Inbound::admit`] and
//! [`Inbound::accept`]); the number of an inbound packet is looked at again when it comes back.
//!
//! Owner: one worker. Source: RFC 4301 section 4.4.2, RFC 4303 sections 3.3 and 3.4.

use std::net::IpAddr;
use std::sync::Arc;

use weir_core::drops::DropReason;

use crate::algorithm::{Algorithm, Associated, Transform};
use crate::esp::{self, Encapsulation, EspLayout, EspMode, Located, Verified, Wrapped};
use crate::ip::IpHeaders;
use crate::lifetime::{Age, Lifetime, Usage};
use crate::replay::{NotFresh, ReplayWindow};
use crate::room::Room;
use crate::sequence::{NoNumber, SequenceNumbers};

/// The fields of both directions.
#[derive(Debug)]
struct Common {
    spi: u32,
    transform: Arc<Transform>,
    encapsulation: Encapsulation,
    layout: EspLayout,
    extended: bool,
    lifetime: Lifetime,
    /// True if the lifetime ends: asked of each packet, before all its limits are.
    ends: bool,
    usage: Usage,
}

/// The settings of an association.
#[derive(Debug)]
pub struct AssociationSettings {
    /// The security parameter index.
    pub spi: u32,
    /// The algorithm with its key.
    pub transform: Transform,
    /// Transport or tunnel, and whether in UDP.
    pub encapsulation: Encapsulation,
    /// True if sequence numbers have 64 bits.
    pub extended: bool,
    /// The soft and hard limits of its use.
    pub lifetime: Lifetime,
}

impl Common {
    fn new(settings: AssociationSettings, now_ns: u64) -> Common {
        let AssociationSettings { spi, transform, encapsulation, extended, lifetime } = settings;
        Common {
            spi,
            layout: encapsulation.layout(transform.algorithm()),
            transform: Arc::new(transform),
            encapsulation,
            extended,
            lifetime,
            ends: lifetime.ends(),
            usage: Usage::since(now_ns),
        }
    }

    fn associated(&self, sequence: u64) -> Associated {
        Associated { spi: self.spi, sequence, extended: self.extended }
    }

    #[inline(always)]
    fn is_over(&self, now_ns: u64) -> bool {
        self.ends && self.lifetime.is_over(&self.usage, now_ns)
    }

    #[inline(always)]
    fn check_age(&self, now_ns: u64) -> Result<(), DropReason> {
        if self.is_over(now_ns) { Err(DropReason::EspExpired) } else { Ok(()) }
    }
}

macro_rules! common {
    ($name:ident) => {
        impl $name {
            /// Its security parameter index.
            pub fn spi(&self) -> u32 {
                self.common.spi
            }

            /// Its algorithm.
            pub fn algorithm(&self) -> Algorithm {
                self.common.transform.algorithm()
            }

            /// Its algorithm with its key, for a worker that seals or verifies elsewhere.
            pub fn transform(&self) -> &Arc<Transform> {
                &self.common.transform
            }

            /// The wrapping of its packets.
            pub fn encapsulation(&self) -> &Encapsulation {
                &self.common.encapsulation
            }

            /// Has other limits from here on; what passed before counts.
            pub fn set_lifetime(&mut self, lifetime: Lifetime) {
                (self.common.ends, self.common.lifetime) = (lifetime.ends(), lifetime);
            }

            /// The packets and bytes that passed.
            pub fn usage(&self) -> Usage {
                self.common.usage
            }

            /// Notes that the machine slept for so long while the clock stood still.
            pub fn note_asleep(&mut self, slept_ns: u64) {
                self.common.usage.asleep_ns += slept_ns;
            }

            /// Returns whether the association may be used no more.
            #[inline]
            pub fn is_over(&self, now_ns: u64) -> bool {
                self.common.is_over(now_ns)
            }

            /// The age of the association, by its limits.
            pub fn age(&self, now_ns: u64) -> Age {
                self.common.lifetime.age(&self.common.usage, now_ns)
            }
        }
    };
}

/// An association by which packets are sealed.
#[derive(Debug)]
pub struct Outbound {
    common: Common,
    numbers: SequenceNumbers,
}

common!(Outbound);

/// The reason why a packet was not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsealed {
    /// No number is reserved. The packet is unchanged; it waits.
    Wait,
    /// The packet is dropped, and its bytes are meaningless.
    Drop(DropReason),
}

impl Outbound {
    /// An association that takes its numbers from `numbers`.
    pub fn new(settings: AssociationSettings, numbers: SequenceNumbers, now_ns: u64) -> Outbound {
        Outbound { common: Common::new(settings, now_ns), numbers }
    }

    /// Sends to another address and port from here on, if it is in UDP; in transport mode to the port alone.
    pub fn set_peer(&mut self, address: IpAddr, port: u16) {
        let Encapsulation { mode, udp } = &mut self.common.encapsulation;
        if let Some(udp) = udp {
            udp.destination = port;
            if let EspMode::Tunnel(tunnel) = mode {
                tunnel.set_destination(address);
            }
        }
    }

    /// Seals a packet with these headers, all of them, in place.
    #[inline(always)]
    pub fn seal(&mut self, room: &mut Room, headers: &IpHeaders, now_ns: u64) -> Result<(), Unsealed> {
        let sequence = self.number(now_ns)?;
        let associated = self.common.associated(sequence);
        let wrapped = self.wrap_with(room, headers, associated)?;
        let sealed = wrapped.seal(room.packet_mut(), &self.common.transform, associated);
        sealed.map_err(Unsealed::Drop)
    }

    /// Gives a packet with these headers a number and wraps it, so that only sealing is left.
    #[inline]
    pub fn wrap(
        &mut self,
        room: &mut Room,
        headers: &IpHeaders,
        now_ns: u64,
    ) -> Result<(Wrapped, Associated), Unsealed> {
        let sequence = self.number(now_ns)?;
        let associated = self.common.associated(sequence);
        self.wrap_with(room, headers, associated).map(|wrapped| (wrapped, associated))
    }

    /// The next number, if the association lives.
    #[inline(always)]
    fn number(&mut self, now_ns: u64) -> Result<u64, Unsealed> {
        self.common.check_age(now_ns).map_err(Unsealed::Drop)?;
        self.numbers.take().map_err(|error| match error {
            NoNumber::NotReserved => Unsealed::Wait,
            NoNumber::Overflow => Unsealed::Drop(DropReason::EspSequenceOverflow),
        })
    }

    #[inline(always)]
    fn wrap_with(
        &mut self,
        room: &mut Room,
        headers: &IpHeaders,
        associated: Associated,
    ) -> Result<Wrapped, Unsealed> {
        let Common { encapsulation, layout, .. } = &self.common;
        let len_bytes = room.len();
        let wrapped = esp::wrap(room, headers, encapsulation, layout, associated);
        let wrapped = wrapped.map_err(Unsealed::Drop)?;
        self.common.usage.add(len_bytes);
        Ok(wrapped)
    }

    /// The sequence numbers.
    pub fn numbers(&self) -> &SequenceNumbers {
        &self.numbers
    }

    /// Notes that the mark is safe on disk.
    pub fn reserve(&mut self, mark: u64) {
        self.numbers.reserve(mark);
    }
}

/// An association by which packets are opened.
#[derive(Debug)]
pub struct Inbound {
    common: Common,
    window: ReplayWindow,
}

common!(Inbound);

impl Inbound {
    /// An association with this window.
    pub fn new(settings: AssociationSettings, window: ReplayWindow, now_ns: u64) -> Inbound {
        Inbound { common: Common::new(settings, now_ns), window }
    }

    /// Opens in place a packet that was found to be this association's; returns the headers of the packet inside. If it is dropped its
    /// bytes are meaningless.
    #[inline(always)]
    pub fn open(&mut self, room: &mut Room, located: &Located, now_ns: u64) -> Result<IpHeaders, DropReason> {
        let associated = self.admit(located, now_ns)?;
        let verified = esp::verify(room, located, &self.common.transform, associated)?;
        self.accept(room, verified, associated.sequence)
    }

    /// The associated data that a packet of this association is to prove, if its number may be received now.
    #[inline(always)]
    pub fn admit(&self, located: &Located, now_ns: u64) -> Result<Associated, DropReason> {
        if located.spi != self.common.spi || located.is_in_udp() != self.common.encapsulation.udp.is_some() {
            return Err(DropReason::EspNoAssociation);
        }
        self.common.check_age(now_ns)?;
        let sequence = match self.common.extended {
            true => self.window.extend(located.sequence_low).ok_or(DropReason::EspTooOld)?,
            false => located.sequence_low.into(),
        };
        self.window.check(sequence).map_err(refused)?;
        Ok(self.common.associated(sequence))
    }

    /// Takes in a packet that has proven this number, unless another has meanwhile; returns the headers of the packet inside.
    #[inline(always)]
    pub fn accept(
        &mut self,
        room: &mut Room,
        verified: Verified,
        sequence: u64,
    ) -> Result<IpHeaders, DropReason> {
        self.window.note(sequence).map_err(refused)?;
        let tunnel = matches!(self.common.encapsulation.mode, EspMode::Tunnel(_));
        let unwrapped = verified.unwrap_packet(room, tunnel);
        self.common.usage.add(room.len());
        unwrapped
    }

    /// Remembers so many numbers from here on.
    ///
    /// # Panics
    /// Those of [`ReplayWindow::set_size`].
    pub fn set_window(&mut self, size: u32) {
        self.window.set_size(size);
    }

    /// The highest number that was proven.
    pub fn highest(&self) -> u64 {
        self.window.highest()
    }
}

fn refused(refused: NotFresh) -> DropReason {
    match refused {
        NotFresh::Replayed => DropReason::EspReplayed,
        NotFresh::TooOld => DropReason::EspTooOld,
    }
}

#[cfg(test)]
#[path = "association_tests.rs"]
mod tests;
