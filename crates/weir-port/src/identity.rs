//! The rights of a program of `weir run`: those of the user who asked sudo(8) for ours.
//!
//! Rule: sudo names the user who asked in `SUDO_UID` and `SUDO_GID`. The program becomes that user, in that user's groups as the system's
//! databases have them, with `HOME`, `USER`, `LOGNAME` and `SHELL` as after a login and without sudo's own variables: as if it had been
//! started without sudo. If root asked, or without sudo, the program stays root.
//!
//! Only root can make use of these variables, and a user who sets the environment of a root process has root's rights anyway; they only
//! ever take rights away.
//!
//! Source: sudo(8) for the variables, getpwuid_r(3), getgrouplist(3), credentials(7).

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;

use crate::sys;

/// Variables of sudo's that the program does not get.
pub const OF_SUDO: [&str; 4] = ["SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND"];

/// A user as whom a program can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    user: libc::uid_t,
    group: libc::gid_t,
    groups: Vec<libc::gid_t>,
    environment: Vec<(&'static str, OsString)>,
}

impl Identity {
    /// The user who asked sudo for root's rights; `None` if no other user did.
    ///
    /// # Errors
    /// A variable that is no number, in one sentence.
    pub fn of_invoker(
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Option<Identity>, String> {
        let number = |name: &'static str| {
            let value = variable(name);
            let number = value.as_deref().and_then(OsStr::to_str).and_then(|text| text.parse::<u32>().ok());
            match (value, number) {
                (None, _) => Ok(None),
                // The highest number means "as it is" to the kernel.
                (_, Some(number)) if number != u32::MAX => Ok(Some(number)),
                (Some(value), _) => Err(format!(
                    "{name} is {value:?}, which is no user's or group's number: unset it, or give --as-root"
                )),
            }
        };
        let Some(user) = number("SUDO_UID")?.filter(|&user| user != 0) else { return Ok(None) };
        let account = account(user);
        let group = number("SUDO_GID")?.or(account.as_ref().map(|account| account.group));
        let group = group.ok_or_else(|| {
            format!("SUDO_UID is {user}, a user that this system does not know, and there is no SUDO_GID: give --as-root")
        })?;
        let Some(account) = account else {
            return Ok(Some(Identity { user, group, groups: vec![group], environment: Vec::new() }));
        };
        let name = OsString::from_vec(account.name.to_bytes().to_vec());
        let environment =
            vec![("HOME", account.home), ("SHELL", account.shell), ("USER", name.clone()), ("LOGNAME", name)];
        Ok(Some(Identity { user, group, groups: groups(&account.name, group), environment }))
    }

    /// The variables that the program's environment has instead of ours.
    pub fn environment(&self) -> &[(&'static str, OsString)] {
        &self.environment
    }

    /// Makes this process that user, for good. Async-signal-safe, for the time between fork and exec.
    pub fn assume(&self) -> io::Result<()> {
        // SAFETY: the pointer and the length are of a live vector.
        sys::check(unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) })?;
        // The user is set last: the change takes the right to make the others.
        // SAFETY: takes no pointers.
        sys::check(unsafe { libc::setresgid(self.group, self.group, self.group) })?;
        // SAFETY: takes no pointers.
        sys::check(unsafe { libc::setresuid(self.user, self.user, self.user) }).map(drop)
    }
}

struct Account {
    name: CString,
    group: libc::gid_t,
    home: OsString,
    shell: OsString,
}

/// The user of this number, if the system has one.
fn account(user: libc::uid_t) -> Option<Account> {
    let mut text = vec![0u8; 64 * 1024];
    // SAFETY: all-zero is a valid `passwd`: numbers and null pointers.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: `entry`, `text` with its own length and `found` are alive for the call, which writes nowhere else.
    let code =
        unsafe { libc::getpwuid_r(user, &mut entry, text.as_mut_ptr().cast(), text.len(), &mut found) };
    if code != 0 || found.is_null() {
        return None;
    }
    let owned = |pointer: *const libc::c_char| -> CString {
        // SAFETY: a field of an entry that was found is a terminated string inside `text`, which is alive.
        unsafe { CStr::from_ptr(pointer) }.to_owned()
    };
    let path = |pointer| OsString::from_vec(owned(pointer).into_bytes());
    Some(Account {
        name: owned(entry.pw_name),
        group: entry.pw_gid,
        home: path(entry.pw_dir),
        shell: path(entry.pw_shell),
    })
}

/// The groups of a user, its own among them.
fn groups(name: &CStr, group: libc::gid_t) -> Vec<libc::gid_t> {
    let mut groups = vec![group; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: the name is terminated, and `count` is the length of `groups`; both are alive for the call.
        let found = unsafe { libc::getgrouplist(name.as_ptr(), group, groups.as_mut_ptr(), &mut count) };
        let count = count.max(0) as usize;
        if found >= 0 {
            groups.truncate(count);
            return groups;
        }
        // A failed call has set `count` to the number of groups.
        groups.resize(count.max(groups.len() * 2), group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Identity>, String> {
        Identity::of_invoker(|name| {
            variables.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn nobody_else_asked() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("SUDO_UID", "0"), ("SUDO_GID", "0")]), Ok(None));
        assert_eq!(of(&[("SUDO_GID", "7")]), Ok(None));
    }

    #[test]
    fn a_user_that_the_system_does_not_know_has_its_group_alone() {
        let unknown = of(&[("SUDO_UID", "3999999990"), ("SUDO_GID", "3999999991")]).unwrap().unwrap();
        let expected = Identity {
            user: 3_999_999_990,
            group: 3_999_999_991,
            groups: vec![3_999_999_991],
            environment: vec![],
        };
        assert_eq!(unknown, expected);
        assert!(of(&[("SUDO_UID", "3999999990")]).unwrap_err().contains("--as-root"));
    }

    #[test]
    fn one_that_it_knows_is_at_home() {
        let nobody = of(&[("SUDO_UID", "65534")]).unwrap().unwrap();
        assert_eq!(nobody.user, 65534);
        assert!(nobody.groups.contains(&nobody.group));
        assert!(nobody.environment().contains(&("USER", "nobody".into())), "{nobody:?}");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for wrong in ["", "-1", "root", "1x", "4294967295", "99999999999"] {
            let why = of(&[("SUDO_UID", wrong)]).unwrap_err();
            assert!(why.contains("SUDO_UID") && why.contains("--as-root"), "{why}");
            assert!(of(&[("SUDO_UID", "1"), ("SUDO_GID", wrong)]).unwrap_err().contains("SUDO_GID"));
        }
    }
}
