//! The rows in which the classes of a direction are shown, one for each class.

use weir_core::account::Account;
use weir_core::drops::Count;
use weir_core::rate::Rate;
use weir_core::shaper::backlog::Backlog;
use weir_core::shaper::delay::DelayHistogram;
use weir_core::shaper::tree::WaitsFor;

use super::{FREE, Shaping};
use crate::classes;

/// One class. An inner class has the books of the leaves below it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the class.
    pub name: String,
    /// The name of its parent.
    pub parent: Option<String>,
    /// Its guarantee or share; none for the packets that pass free.
    pub rate: Option<Rate>,
    /// The highest rate that it may reach.
    pub ceil: Option<Rate>,
    /// The bytes that may wait in it; for a leaf alone.
    pub limit_bytes: Option<u64>,
    /// Its books.
    pub account: Account,
    /// Packets that wait.
    pub held: Count,
    /// Packets that were marked as having met congestion.
    pub marked: u64,
    /// The time for which its feeders were blocked, in nanoseconds; of the leaves the longest, for their times may be the same.
    pub blocked_ns: u64,
    /// The standing delays of packets.
    pub delay: DelayHistogram,
    /// The holders of the packets that wait.
    pub holders: Holders,
}

/// The holders of the packets that wait in a class and below it, each with the bytes that it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders(Vec<(Holder, u64)>);

/// A holder of packets that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The limit of the direction.
    Limit,
    /// The limit of a class, by the name of the class.
    Class(String),
}

impl Holders {
    /// The holder of the most bytes, of several the one that came first; none where no packet waits, or all may leave.
    pub fn most(&self) -> Option<&Holder> {
        let most = self.0.iter().map(|(_, bytes)| *bytes).max()?;
        self.0.iter().find(|(_, bytes)| *bytes == most).map(|(holder, _)| holder)
    }

    fn add(&mut self, holder: &Holder, bytes: u64) {
        match self.0.iter_mut().find(|(of, _)| of == holder) {
            Some((_, sum)) => *sum += bytes,
            None => self.0.push((holder.clone(), bytes)),
        }
    }
}

impl Row {
    fn add(&mut self, backlog: &Backlog, now_ns: u64) {
        self.account.merge(backlog.account());
        self.held.merge(backlog.held());
        self.marked += backlog.marked();
        self.blocked_ns = self.blocked_ns.max(backlog.blocked().total_ns(now_ns));
        self.delay.merge(backlog.delay());
    }
}

impl Shaping {
    /// A row for each class of the file, and for the packets that pass free; none without a file.
    pub fn rows(&self, now_ns: u64) -> Vec<Row> {
        let Some(tree) = &self.tree else { return Vec::new() };
        let classes = &tree.classes.classes;
        let empty = |name: &str| Row {
            name: name.into(),
            parent: None,
            rate: None,
            ceil: None,
            limit_bytes: None,
            account: Account::default(),
            held: Count::default(),
            marked: 0,
            blocked_ns: 0,
            delay: DelayHistogram::default(),
            holders: Holders::default(),
        };
        let mut rows: Vec<Row> = classes
            .iter()
            .map(|class| Row {
                parent: class.parent.map(|parent| classes[parent].name.clone()),
                rate: Some(class.rate),
                ceil: Some(class.ceil),
                ..empty(&class.name)
            })
            .collect();
        for (index, &number) in tree.numbers.iter().enumerate() {
            let Some(backlog) = self.backlog(number) else { continue };
            rows[index].limit_bytes = Some(backlog.limit_bytes());
            let holder = self.holder(number, now_ns);
            let mut next = Some(index);
            while let Some(class) = next {
                rows[class].add(backlog, now_ns);
                holder.iter().for_each(|holder| rows[class].holders.add(holder, backlog.held().bytes));
                next = classes[class].parent;
            }
        }
        let mut free = empty(classes::FREE);
        if let Some(backlog) = self.backlog(FREE) {
            free.add(backlog, now_ns);
        }
        rows.push(free);
        rows
    }

    /// The holders of the packets that wait in all classes.
    pub fn holders(&self, now_ns: u64) -> Holders {
        let mut all = Holders::default();
        for class in self.leaves() {
            let bytes = self.backlog(class).map_or(0, |backlog| backlog.held().bytes);
            self.holder(class, now_ns).iter().for_each(|holder| all.add(holder, bytes));
        }
        all
    }

    /// The holder of the packets that wait in a class in which packets can wait.
    fn holder(&self, class: usize, now_ns: u64) -> Option<Holder> {
        if class == FREE || self.backlog(class)?.held().packets == 0 {
            return None;
        }
        let longest_bytes = u32::try_from(self.packet_bytes_max).unwrap_or(u32::MAX);
        Some(match self.shaper.waits_for(class, longest_bytes, now_ns)? {
            WaitsFor::Link => Holder::Limit,
            WaitsFor::Class(number) => {
                let tree = self.tree.as_ref()?;
                let place = tree.numbers.iter().position(|of| *of == number)?;
                Holder::Class(tree.classes.classes[place].name.clone())
            }
        })
    }

    /// The time for which feeders were blocked, in nanoseconds: by the one class, or by the class that blocked them longest. A change of
    /// classes takes nothing off it.
    pub fn blocked_ns(&self, now_ns: u64) -> u64 {
        let blocked = |class| self.backlog(class).map(|backlog| backlog.blocked().total_ns(now_ns));
        self.retired.blocked_ns + self.leaves().filter_map(blocked).max().unwrap_or(0)
    }

    /// The standing delays of packets, in all classes, also those that are no more.
    pub fn delay(&self) -> DelayHistogram {
        let mut all = self.retired.delay.clone();
        for class in self.leaves() {
            if let Some(backlog) = self.backlog(class) {
                all.merge(backlog.delay());
            }
        }
        all
    }

    /// The bytes that the one class may hold, if there are limits; none where a tree has credits of its own.
    pub fn limit_bytes(&self) -> Option<u64> {
        match (&self.tree, self.limits) {
            (None, Some(_)) => self.backlog(0).map(Backlog::limit_bytes),
            _ => None,
        }
    }
}
