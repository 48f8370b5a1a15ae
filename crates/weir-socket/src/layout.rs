//! The plan of a stack ([`weir_path::plan`]), and the workers of it.
//!
//! ```text
//! interface 0 -- [host] -- 1: port of socket 0            hosts joined in memory:   sockets -- [host 0] -- [host 1] -- sockets
//!                       -- 2: port of socket 1            by a link with a limit:   sockets -- [host 0] -- interface 0, interface 1 -- [host 1] -- sockets
//!                       -- last: port of all TCP
//!
//! several workers:  each has such a portion, with ports of its own, in this order
//! with a limit:     [host] of another worker --ring--> interface 0 of the first, whose egress queue keeps the limit
//! ```
//!
//! Every socket that there may be has its port from the start; a bound socket's port has rings ([`crate::port`]). So binding changes no plan.
//!
//! Rule: a limit is one egress queue, so it is exact, and the sockets of all workers have their turns there. Workers without a limit have a plan each:
//! none knows of another.

use std::io;
use std::sync::Arc;

use weir_core::net::router::RouterSettings;
use weir_core::shaper::tbf::TbfConfig;
use weir_path::assembly::Shares;
use weir_path::deal::{self, DealError};
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::owners::Owners;
use weir_path::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan};
use weir_path::port::POLL_PACKETS_MAX;
use weir_path::worker::Worker;
use weir_run::seed::random_seed;

use crate::builder::{EGRESS_PACKETS_MAX, invalid};
use crate::port::SocketPort;
use crate::shared::SharedPorts;
use crate::tcp::port::TcpPort;
use crate::tcp::settings::TcpSettings;
use crate::tcp::state::News;
use crate::worker::StackPort;

/// The hosts of a stack, and the interfaces with their limits: one for each host, or none if two hosts are joined.
pub(crate) struct Layout<'a> {
    pub(crate) hosts: &'a [RouterSettings],
    pub(crate) interfaces: &'a [(&'a str, Option<TbfConfig>)],
}

/// The parts of a worker's portion: its interfaces, frames, and the TCP of each host.
pub(crate) struct WorkerPortion {
    pub(crate) interfaces: Vec<StackPort>,
    pub(crate) frames: Frames,
    pub(crate) tcp: Vec<(TcpSettings, Arc<News>)>,
}

impl Layout<'_> {
    /// The workers of a stack, no socket bound.
    ///
    /// # Errors
    /// If the limits cannot be kept, or the kernel does not give the descriptors that wake the workers.
    pub(crate) fn workers(
        &self,
        portions: Vec<WorkerPortion>,
        ports: Option<&Arc<SharedPorts>>,
        now_ns: u64,
    ) -> io::Result<Vec<Worker<StackPort>>> {
        let has_limit = self.interfaces.iter().any(|(_, limits)| limits.is_some());
        if has_limit {
            return self.joined(0, portions, ports, now_ns);
        }
        let mut workers = Vec::new();
        for (number, portion) in portions.into_iter().enumerate() {
            workers.extend(self.joined(number, vec![portion], ports, now_ns)?);
        }
        Ok(workers)
    }

    /// The plan of so many workers from this number on, and the owners of its ports and stages.
    fn plan(&self, first_worker: usize, workers: usize) -> (Plan, Owners) {
        let port =
            |interface: String, limits| PortPlan { interface, limits, classes: None, is_optional: false };
        let (mut plan, mut owners) = (Plan::default(), Owners::default());
        for worker in 0..workers {
            let first_stage = plan.stages.len();
            for (number, &(name, limits)) in self.interfaces.iter().enumerate() {
                let host = Attachment::Stage(first_stage + number, 0);
                if worker > 0 && limits.is_some() {
                    // The first link of the host leads on from it, and the next one to it.
                    plan.links.push([host, Attachment::Port(number)]);
                }
                plan.links.push([Attachment::Port(plan.ports.len()), host]);
                plan.ports.push(port(name.into(), limits));
            }
            if self.interfaces.is_empty() {
                plan.links.push([0, 1].map(|host| Attachment::Stage(first_stage + host, 0)));
            }
            for (number, settings) in self.hosts.iter().enumerate() {
                let (stage, name) = (first_stage + number, format!("host{number}"));
                for socket in 0..settings.host.map_or(0, |host| host.ports()) {
                    let at = Attachment::Stage(stage, 1 + socket);
                    plan.links.push([Attachment::Port(plan.ports.len()), at]);
                    plan.ports.push(port(format!("{name}.{socket}"), None));
                }
                // One of them tells the link of the host.
                let announces = settings.announces && first_worker + worker == 0;
                let settings = RouterSettings { announces, ..settings.clone() };
                plan.stages.push(StagePlan { name, kind: StageKind::Router(Box::new(settings)) });
            }
            owners.ports.resize(plan.ports.len(), worker);
            owners.stages.resize(plan.stages.len(), worker);
        }
        (plan, owners)
    }

    /// The workers of one plan, from this number on.
    fn joined(
        &self,
        first_worker: usize,
        portions: Vec<WorkerPortion>,
        shared: Option<&Arc<SharedPorts>>,
        now_ns: u64,
    ) -> io::Result<Vec<Worker<StackPort>>> {
        let (plan, owners) = self.plan(first_worker, portions.len());
        let shares = Shares {
            held_packets_max: EGRESS_PACKETS_MAX,
            poll_budget_max: POLL_PACKETS_MAX,
            queues_gone: 0,
            seed: random_seed(),
        };
        let (mut ports, mut pools) = (Vec::new(), Vec::new());
        for WorkerPortion { interfaces, mut frames, tcp } in portions {
            ports.extend(interfaces);
            for (host, (settings, news)) in self.hosts.iter().zip(tcp) {
                let sockets = host.host.map_or(0, |host| host.sockets);
                let of_socket = || EitherPort::Kernel(Box::<SocketPort>::default());
                ports.extend((0..sockets).map(|_| EitherPort::Memory(Box::new(of_socket()))));
                if settings.connections > 0 {
                    let mut port = TcpPort::new(settings, news, &mut frames, random_seed(), now_ns);
                    port.ports = shared.cloned();
                    ports.push(EitherPort::Memory(Box::new(EitherPort::Memory(Box::new(port)))));
                }
            }
            pools.push(frames);
        }
        let ports = ports.into_iter().map(Some).collect();
        deal::workers((&plan, &owners), ports, pools, shares, now_ns).map_err(|error| match error {
            DealError::Plan(_) => invalid(error),
            DealError::Inbox(_) => io::Error::other(error),
        })
    }
}
