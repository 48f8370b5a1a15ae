//! ESP: any packets that may come by a wire, and packets sealed, changed and opened again.
//!
//! Nonsense is refused with a reason. An unchanged packet is opened as it was; a changed packet is opened as it was or not at all.

use weir_core::drops::DropReason;
use weir_ipsec::algorithm::{Algorithm, Associated, KeyMaterial, Transform};
use weir_ipsec::association::{AssociationSettings, Inbound};
use weir_ipsec::esp::{self, Arrival, Encapsulation, EspMode, UDP_PORT, UdpEncapsulation};
use weir_ipsec::ip::IpHeaders;
use weir_ipsec::lifetime::Lifetime;
use weir_ipsec::path_mtu::TooBig;
use weir_ipsec::policy::{AddressPrefix, BundleId, Policies, PolicyAction, SecurityPolicy, Selector};
use weir_ipsec::replay::ReplayWindow;
use weir_ipsec::room::Room;
use weir_ipsec::tunnel::Tunnel;

use crate::draw::Draw;
use crate::frames::{self, Ends, Frame};

const SPI: u32 = 0x1000;
/// The most bytes that are put around a packet.
const AROUND: usize = 128;

/// Bytes as they are, to an association of each kind and to a policy.
pub fn esp_nonsense(bytes: &[u8]) {
    for algorithm in Algorithm::ALL {
        for (mode, extended) in [(EspMode::Transport, false), (tunnel(false), true)] {
            let encapsulation = Encapsulation { mode, udp: None };
            let _ = open(&mut bytes.to_vec(), inbound(algorithm, encapsulation, extended));
        }
    }
    if let Ok(headers) = IpHeaders::read_all(bytes) {
        let _ = TooBig::read(bytes, &headers);
        let _ = policies().outbound(bytes, &headers);
        let _ = policies().inbound(bytes, &headers, Some(&[BundleId(0)]));
    }
}

/// Packets sealed in every way, and changed as on a wire.
pub fn esp_sealed(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let algorithm = draw.pick(&Algorithm::ALL);
    let mode = [EspMode::Transport, tunnel(false), tunnel(true)][draw.below(3)];
    let udp = draw.flag().then_some(UdpEncapsulation { source: UDP_PORT, destination: UDP_PORT });
    let encapsulation = Encapsulation { mode, udp };
    let extended = draw.flag();
    let sequence = 1 + u64::from(draw.u16());
    let Frame { bytes: frame, ip_at, ip_len, .. } = frames::ip(&mut draw, Ends::default());
    let packet = &frame[ip_at..ip_at + ip_len];

    let start = draw.below(AROUND);
    let mut memory = vec![0; start];
    memory.extend(packet);
    memory.resize(packet.len() + 2 * AROUND, 0);
    let mut room = Room::new(&mut memory, start, packet.len()).expect("it lies within");
    let associated = Associated { spi: SPI, sequence, extended };
    let sealing = IpHeaders::read_all(packet).and_then(|headers| {
        let _ = policies().outbound(packet, &headers);
        esp::seal(&mut room, &headers, &transform(algorithm), &encapsulation, associated)
    });
    let headers = match sealing {
        Ok(()) => IpHeaders::read(packet).expect("it was sealed"),
        Err(reason) => {
            let refused = [DropReason::EspFragment, DropReason::Malformed];
            return assert!(refused.contains(&reason), "{reason:?}");
        }
    };
    let mut sealed = room.packet().to_vec();
    let plain = &packet[..headers.packet_len()];
    let changes = draw.below(3);
    for _ in 0..changes {
        let at = draw.below(sealed.len());
        sealed[at] ^= draw.u8();
    }
    let opened = open(&mut sealed, inbound(algorithm, encapsulation, extended));
    if changes == 0 {
        match opened {
            // The header says that nothing follows, as dummies do.
            Err(DropReason::EspDummy) => assert!(mode == EspMode::Transport && headers.next() == 59),
            opened => assert_eq!(opened.as_deref(), Ok(plain)),
        }
    } else if let Ok(opened) = opened
        && algorithm.icv_len() > 0
        && mode != EspMode::Transport
    {
        // A mark of congestion is not proven; it changes two bits, and the checksum with them.
        assert_eq!(opened.len(), plain.len());
        assert_eq!(opened[12..], plain[12..]);
    }
}

fn transform(algorithm: Algorithm) -> Transform {
    let key = vec![0x42; algorithm.key_len()];
    let material = KeyMaterial::new(algorithm, &key).expect("it is as long as it must be");
    Transform::new(algorithm, &material).expect("it is as long as it must be")
}

fn tunnel(v6: bool) -> EspMode {
    let [source, destination] = match v6 {
        false => ["192.0.2.1", "192.0.2.2"],
        true => ["2001:db8::1", "2001:db8::2"],
    };
    let [source, destination] = [source, destination].map(|end| end.parse().expect("an address"));
    EspMode::Tunnel(Tunnel::new(source, destination).expect("one family"))
}

fn inbound(algorithm: Algorithm, encapsulation: Encapsulation, extended: bool) -> Inbound {
    let transform = transform(algorithm);
    let lifetime = Lifetime::default();
    let settings = AssociationSettings { spi: SPI, transform, encapsulation, extended, lifetime };
    Inbound::new(settings, ReplayWindow::new(1024), 0)
}

fn open(bytes: &mut [u8], mut inbound: Inbound) -> Result<Vec<u8>, DropReason> {
    let len = bytes.len();
    let mut room = Room::new(bytes, 0, len).expect("it lies within");
    let headers = IpHeaders::read_all(room.packet())?;
    let Arrival::Esp(located) = esp::locate(room.packet(), &headers, &[UDP_PORT])? else {
        return Err(DropReason::NoHandler);
    };
    inbound.open(&mut room, &located, 0)?;
    Ok(room.packet().to_vec())
}

fn policies() -> Policies {
    let any = |address: &str| AddressPrefix::new(address.parse().expect("an address"), 0).expect("a prefix");
    let selector = |address| Selector {
        source: any(address),
        destination: any(address),
        protocol: Some(17),
        source_ports: None,
        destination_ports: Some(0..=1023),
    };
    let action = PolicyAction::Protect(BundleId(0));
    Policies::new(
        ["0.0.0.0", "::"].map(|address| SecurityPolicy { selector: selector(address), action }).into(),
    )
}
