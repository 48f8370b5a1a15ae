//! The classes of a direction as they are shown, a row each.

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
    /// Its name.
    pub name: String,
    /// Its parent's.
    pub parent: Option<String>,
    /// Its guarantee or share; none for what is free.
    pub rate: Option<Rate>,
    /// The most it may reach.
    pub ceil: Option<Rate>,
    /// How much may wait in it, in bytes; a leaf's alone.
    pub limit_bytes: Option<u64>,
    /// Its books.
    pub account: Account,
    /// What waits.
    pub held: Count,
    /// How many packets were marked as having met congestion.
    pub marked: u64,
    /// For how long its feeders were blocked; the sum of the leaves.
    pub blocked_ns: u64,
    /// How long packets stood.
    pub delay: DelayHistogram,
    /// What holds what waits.
    pub holders: Holders,
}

/// What holds packets that wait in a place and below it: how many bytes each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders(Vec<(Holder, u64)>);

/// What holds packets that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The limit of the direction.
    Limit,
    /// What a class is allowed, by the name of that.
    Class(String),
}

impl Holders {
    /// What holds most of it, of several the one that came first; none where nothing waits, or all of it may leave.
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
        self.blocked_ns += backlog.blocked().total_ns(now_ns);
        self.delay.merge(backlog.delay());
    }
}

impl Shaping {
    /// A row for each class of the file, and for what passes free; none without a file.
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

    /// What holds what waits in all classes.
    pub fn holders(&self, now_ns: u64) -> Holders {
        let mut all = Holders::default();
        for class in self.leaves() {
            let bytes = self.backlog(class).map_or(0, |backlog| backlog.held().bytes);
            self.holder(class, now_ns).iter().for_each(|holder| all.add(holder, bytes));
        }
        all
    }

    /// What holds what waits in a class in which packets can wait.
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

    /// For how long feeders were blocked: by the one class, or by the class that blocked them longest.
    pub fn blocked_ns(&self, now_ns: u64) -> u64 {
        let blocked = |class| self.backlog(class).map(|backlog| backlog.blocked().total_ns(now_ns));
        self.leaves().filter_map(blocked).max().unwrap_or(0)
    }

    /// How long packets stood, in all classes.
    pub fn delay(&self) -> DelayHistogram {
        let mut all = DelayHistogram::default();
        for class in self.leaves() {
            if let Some(backlog) = self.backlog(class) {
                all.merge(backlog.delay());
            }
        }
        all
    }

    /// How many bytes may be held: by the one class; none where a tree has credits of its own.
    pub fn limit_bytes(&self) -> Option<u64> {
        match (&self.tree, self.limits) {
            (None, Some(_)) => self.backlog(0).map(Backlog::limit_bytes),
            _ => None,
        }
    }
}
