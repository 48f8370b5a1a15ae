//! Admission to the control socket: which users may come, what for, and how many at once.
//!
//! Rule: root may change a wire and see its file, everybody may read its counters. Root always finds a place, and no user can take those of
//! the others. Requests of others than root never keep a worker busy: all of these users together are told counters that are up to
//! [`FRESH_NS`] old, so that workers stand still for their sake a few times a second at most, however often they ask.
//!
//! Owner: the thread that serves the socket. Limits: users are told apart by number, so all that a container's user namespace does
//! not map are one.

use super::Command;

/// The user who may change wires.
pub const ROOT: u32 = 0;
/// The most clients at once.
const CLIENTS_MAX: usize = 64;
/// The most clients that are not root's.
const OTHERS_MAX: usize = 32;
/// The most clients of one user.
const PER_USER_MAX: usize = 8;
/// The greatest age of counters that others than root are told, in nanoseconds.
pub const FRESH_NS: u64 = 50_000_000;

/// Returns whether one more client of `user` may come in beside those of `present`.
pub fn admits(present: impl Iterator<Item = u32>, user: u32) -> bool {
    let (mut all, mut others, mut own) = (0, 0, 0);
    for other in present {
        all += 1;
        others += usize::from(other != ROOT);
        own += usize::from(other == user);
    }
    all < CLIENTS_MAX && (user == ROOT || (others < OTHERS_MAX && own < PER_USER_MAX))
}

/// Returns whether `user` may ask for this.
pub fn allows(command: &Command, user: u32) -> bool {
    match command {
        Command::Stat => true,
        Command::Show
        | Command::Set(_)
        | Command::SetClasses(_)
        | Command::RemoveClasses
        | Command::Apply(_)
        | Command::Stop => user == ROOT,
    }
}

/// The last counters that were told.
#[derive(Default)]
pub struct Recent {
    told: Option<(u64, String)>,
}

impl Recent {
    /// The counters that `user` is told at `now_ns`: root always those that `count` finds, others the last ones if they are fresh.
    pub fn tell(
        &mut self,
        user: u32,
        now_ns: u64,
        count: impl FnOnce() -> Result<String, String>,
    ) -> Result<String, String> {
        match &self.told {
            Some((at_ns, text)) if user != ROOT && now_ns.saturating_sub(*at_ns) < FRESH_NS => {
                Ok(text.clone())
            }
            _ => {
                let text = count()?;
                self.told = Some((now_ns, text.clone()));
                Ok(text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_takes_the_place_of_another_or_of_root() {
        let mut present = Vec::new();
        // Each of ten users comes as often as it can.
        for user in (1000..1010).flat_map(|user| [user; 100]) {
            if admits(present.iter().copied(), user) {
                present.push(user);
            }
        }
        let of = |user| present.iter().filter(|other| **other == user).count();
        assert_eq!((present.len(), of(1000), of(1003), of(1004)), (OTHERS_MAX, 8, 8, 0));
        for _ in OTHERS_MAX..CLIENTS_MAX {
            assert!(admits(present.iter().copied(), ROOT));
            present.push(ROOT);
        }
        assert!(!admits(present.iter().copied(), ROOT), "memory is bounded");
    }

    #[test]
    fn only_root_changes_anything() {
        let set = serde_json::from_str(r#"{"set": {"direction": 0}}"#).unwrap();
        let classes = serde_json::from_str(r#"{"set-classes": {"file": "f", "text": ""}}"#).unwrap();
        for command in [&set, &classes] {
            assert!(allows(command, ROOT) && !allows(command, 1000));
        }
        assert!(allows(&Command::Stat, 1000));
    }

    #[test]
    fn others_make_workers_stand_still_a_few_times_a_second() {
        let mut recent = Recent::default();
        let mut counted = 0;
        for now_ns in (0..1_000_000_000).step_by(1_000_000) {
            let tell = recent.tell(1000, now_ns, || {
                counted += 1;
                Ok(counted.to_string())
            });
            assert!(tell.is_ok());
        }
        assert_eq!(counted, 20);
        assert_eq!(recent.tell(ROOT, 999_999_999, || Ok("new".into())), Ok("new".into()));
        assert_eq!(recent.tell(1000, 999_999_999, || Err("no".into())), Ok("new".into()));
        assert_eq!(recent.tell(1000, 2_000_000_000, || Err("no".into())), Err("no".into()));
    }
}
