//! The plan of a stack ([`weir_path::plan`]), and a worker of it.
//!
//! ```text
//! interface 0 -- [host] -- 1: port of socket 0            hosts joined in memory:   sockets -- [host 0] -- [host 1] -- sockets
//!                       -- 2: port of socket 1            by a link with a limit:   sockets -- [host 0] -- interface 0, interface 1 -- [host 1] -- sockets
//!                       -- last: port of all TCP
//! ```
//!
//! Every socket that there may be has its port from the start; a bound socket's port has rings ([`crate::port`]). So binding changes no plan.

use std::io;
use std::sync::Arc;

use weir_core::net::router::RouterSettings;
use weir_core::shaper::tbf::TbfConfig;
use weir_path::assembly::Shares;
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::owners::{Owners, Portion};
use weir_path::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan};
use weir_path::port::POLL_PACKETS_MAX;
use weir_path::worker::Worker;
use weir_run::seed::random_seed;

use crate::builder::{EGRESS_PACKETS_MAX, invalid};
use crate::port::SocketPort;
use crate::shared::SharedPorts;
use crate::tcp::port::{TcpPort, TcpSettings};
use crate::tcp::state::News;
use crate::worker::StackPort;

/// The plan of hosts: each on one of these interfaces with its limits, or, without interfaces, two that are joined.
pub(crate) fn plan(hosts: &[RouterSettings], interfaces: &[(&str, Option<TbfConfig>)]) -> Plan {
    let port = |interface: String, limits| PortPlan { interface, limits, classes: None, is_optional: false };
    let mut plan = Plan::default();
    for (number, &(name, limits)) in interfaces.iter().enumerate() {
        plan.ports.push(port(name.into(), limits));
        plan.links.push([Attachment::Port(number), Attachment::Stage(number, 0)]);
    }
    if interfaces.is_empty() {
        plan.links.push([Attachment::Stage(0, 0), Attachment::Stage(1, 0)]);
    }
    for (number, settings) in hosts.iter().enumerate() {
        let name = format!("host{number}");
        for socket in 0..settings.host.map_or(0, |host| host.ports()) {
            plan.links.push([Attachment::Port(plan.ports.len()), Attachment::Stage(number, 1 + socket)]);
            plan.ports.push(port(format!("{name}.{socket}"), None));
        }
        plan.stages.push(StagePlan { name, kind: StageKind::Router(Box::new(settings.clone())) });
    }
    plan
}

/// A worker of that plan, with its interfaces if there are any, TCP of each host, and no socket bound.
///
/// # Errors
/// If the limits cannot be kept.
pub(crate) fn path(
    plan: &Plan,
    interfaces: Vec<StackPort>,
    mut frames: Frames,
    tcp: &[(TcpSettings, Arc<News>)],
    ports: Option<&Arc<SharedPorts>>,
    now_ns: u64,
) -> io::Result<Worker<StackPort>> {
    let owners = Owners::alone(plan);
    let shares = Shares {
        held_packets_max: EGRESS_PACKETS_MAX,
        poll_budget_max: POLL_PACKETS_MAX,
        queues_gone: 0,
        seed: random_seed(),
    };
    let sockets = plan.ports.len() - interfaces.len();
    let mut own = interfaces;
    let of_host = sockets / tcp.len();
    for (settings, news) in tcp {
        let count = of_host - usize::from(settings.connections > 0);
        let of_socket = || EitherPort::Kernel(Box::<SocketPort>::default());
        own.extend((0..count).map(|_| EitherPort::Memory(Box::new(of_socket()))));
        if settings.connections > 0 {
            let mut port = TcpPort::new(*settings, Arc::clone(news), &mut frames, random_seed(), now_ns);
            port.ports = ports.cloned();
            own.push(EitherPort::Memory(Box::new(EitherPort::Memory(Box::new(port)))));
        }
    }
    let ports = own.into_iter().enumerate().collect();
    let portion = Portion { plan, owners: &owners, worker: 0 };
    Worker::new(portion, ports, frames, None, shares, now_ns).map_err(invalid)
}
