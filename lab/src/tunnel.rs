//! Two IPsec gateways in memory: a generator's packets are sealed, opened and checked by a sink.
//!
//! ```text
//! gen --- [inside  near  outside] === ESP === [outside  far  inside] --- sink
//! ```
//!
//! The traffic is the published bed's, 2,000 flows of UDP, all by one association. Without gateways the generator's link leads to the sink.

use std::net::IpAddr;

use weir_core::net::bridge::AGEING_NS;
use weir_ipsec::algorithm::Algorithm;
use weir_ipsec::lifetime::Lifetime;
use weir_ipsec::policy::{AddressPrefix, Selector};
use weir_ipsec::replay::SIZE_MAX;
use weir_ipsec::tunnel::OuterDontFragment;
use weir_path::esp::plan::{AssociationPlan, EspDispatch, EspPlan, PolicyPlan, PolicyVerb};
use weir_path::esp::{INSIDE, OUTSIDE};
use weir_path::owners::Owners;
use weir_path::plan::{Attachment, Plan, StageKind, StagePlan};
use weir_path::traffic::flows::Traffic;
use weir_path::traffic::generator::{GenSpec, Until};
use weir_run::memory::{MemoryEnd, MemoryPath};
use weir_run::testbed::{FLOWS, port, traffic};

const GATEWAYS: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];
const FRAMES: u32 = 4096;
/// The MTU outside, at which a packet of 1,500 bytes is sealed uncut.
const MTU_BYTES: u16 = 1600;

/// The stages between the generator and the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Two bridges: as many stages, and nothing sealed.
    Bridges,
    /// Two gateways, with this algorithm.
    Gateways(Algorithm),
}

/// The bed, on one worker, with packets of so many bytes.
pub fn tunnel(between: Between, size_bytes: u16, until: Until) -> MemoryPath {
    use Attachment::{Port, Stage};
    let stage = |own: usize| match between {
        Between::Bridges => StageKind::Bridge { ports: 2, stations_max: 1024, ageing_ns: AGEING_NS },
        Between::Gateways(algorithm) => {
            StageKind::Esp(Box::new(gateway(GATEWAYS, own, algorithm, EspDispatch::default())))
        }
    };
    let plan = Plan {
        ports: ["gen", "sink"].map(port).into(),
        stages: ["near", "far"]
            .iter()
            .zip(0..)
            .map(|(name, own)| StagePlan { name: (*name).into(), kind: stage(own) })
            .collect(),
        links: vec![
            [Port(0), Stage(0, INSIDE)],
            [Stage(0, OUTSIDE), Stage(1, OUTSIDE)],
            [Stage(1, INSIDE), Port(1)],
        ],
        dispatched: Vec::new(),
    };
    let generator = GenSpec { traffic: Traffic { size_bytes, ..traffic() }, packets_per_s: None, until };
    MemoryPath {
        owners: Owners::alone(&plan),
        plan,
        ends: vec![MemoryEnd::Generator(generator), MemoryEnd::Sink { flows: FLOWS }],
        workers: 1,
        frames: FRAMES,
        held_packets_max: 256,
    }
}

/// So many beds beside each other with an association each, by AES-256-GCM, on so many workers. Ports and stages are dealt to these as if
/// gateways had `dealt_as` for their dispatch.
pub fn tunnels(
    count: usize,
    [dispatch, dealt_as]: [EspDispatch; 2],
    workers: usize,
    size_bytes: u16,
    until: Until,
) -> MemoryPath {
    use Attachment::{Port, Stage};
    let (mut plan, mut ends) = (Plan::default(), Vec::new());
    let flows = FLOWS / count as u32;
    for bed in 0..count {
        plan.ports.extend(["gen", "sink"].map(|name| port(&format!("{name}-{bed}"))));
        plan.stages.extend(["near", "far"].into_iter().zip(0..).map(|(name, own)| StagePlan {
            name: format!("{name}-{bed}"),
            kind: StageKind::Esp(Box::new(gateway(GATEWAYS, own, Algorithm::Aes256Gcm, dealt_as))),
        }));
        let [near, far] = [2 * bed, 2 * bed + 1];
        plan.links.extend([
            [Port(near), Stage(near, INSIDE)],
            [Stage(near, OUTSIDE), Stage(far, OUTSIDE)],
            [Stage(far, INSIDE), Port(far)],
        ]);
        let traffic = Traffic { size_bytes, flows, first_flow: bed as u32 * flows, ..traffic() };
        ends.push(MemoryEnd::Generator(GenSpec { traffic, packets_per_s: None, until }));
        ends.push(MemoryEnd::Sink { flows: FLOWS });
    }
    let owners = Owners::deal(&plan, workers);
    for stage in &mut plan.stages {
        if let StageKind::Esp(esp) = &mut stage.kind {
            esp.dispatch = dispatch;
        }
    }
    MemoryPath { owners, plan, ends, workers, frames: FRAMES, held_packets_max: 256 }
}

/// Gateway `own` of two: the near one seals, and the far one opens.
pub(crate) fn gateway(
    gateways: [[u8; 4]; 2],
    own: usize,
    algorithm: Algorithm,
    dispatch: EspDispatch,
) -> EspPlan {
    let is_inbound = own == 1;
    let [source, destination] = gateways.map(IpAddr::from);
    let any = AddressPrefix::new([0; 4].into(), 0).expect("no bits of an address");
    let association = AssociationPlan {
        name: "tunnel".into(),
        is_inbound,
        spi: 0x1001,
        source,
        destination,
        is_tunnel: true,
        algorithm,
        key_file: None,
        is_extended: true,
        window: SIZE_MAX,
        udp_ports: None,
        keepalive_ns: None,
        follows_peer: false,
        dont_fragment: OuterDontFragment::Copied,
        lifetime: Lifetime::default(),
    };
    let policy = PolicyPlan {
        is_inbound,
        selector: Selector {
            source: any,
            destination: any,
            protocol: None,
            source_ports: None,
            destination_ports: None,
        },
        verb: PolicyVerb::Protect,
        associations: vec![association.name.clone()],
    };
    EspPlan {
        addresses: vec![gateways[own].into()],
        mtu_bytes: MTU_BYTES,
        associations: vec![association],
        policies: vec![policy],
        dispatch,
    }
}
