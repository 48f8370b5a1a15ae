//! Mends a pair whose weir was killed together with its guardian: puts back what the guardian would have, as far as it left word.
//!
//! The old states stand in the holds that no process has any more ([`crate::hold`]). Without one, as after `/run` was full or emptied, the leavings
//! of weir are recognised by themselves: its qdisc by its handle, and with it checksum offload and VLAN tag insertion that are off. Held senders are
//! released in any case, which harms nobody.
//!
//! Rule: a thing that a living weir holds is not touched. Mending twice is mending once.

use crate::error::{PortError, Result};
use crate::features::{self, ChecksumOffloads, TagInsertion};
use crate::forwarding::{Setting, SettingBefore, sort_for_putting_back};
use crate::hold::{self, Hold, Owner, Thing, left};
use crate::link::Link;
use crate::lock::Lock;
use crate::napi::{self, Deferral};
use crate::netlink::is_code;
use crate::netns::NetNs;
use crate::release::Means;
use crate::way_out::nftables;
use crate::{holder, link, qdisc};

/// Mends both ends of the pair of an interface of this thread's namespace; returns what was done, in words.
///
/// # Errors
/// If another process has one of the ends.
pub fn pair(name: &str, say: &mut dyn FnMut(&str)) -> Result<Vec<String>> {
    let link = Link::by_name(name)?;
    let netns = NetNs::current()?;
    let (far_netns, far) = link.peer()?;
    let ends = [(&netns, &link), (&far_netns, &far)];
    let things = ends.map(|(netns, link)| {
        [Thing::receive, Thing::queue, Thing::checksum, Thing::tags].map(|thing| thing(netns, link))
    });
    // Both ends are taken before anything is done to one of them, in the order in which the other end's mending takes them.
    let mut holds = hold::ends::all_alone(things.concat(), &Owner::this(None), say)?;
    let mut done = Vec::new();
    let mut means = Means::new();
    let mut queues = Vec::new();
    for ((netns, link), things) in ends.into_iter().zip(&things) {
        let [receive, queue, checksum, tags] = things.each_ref().map(|thing| {
            let place = holds.iter().position(|hold| hold.is_on(thing)).expect("each thing is held");
            holds.swap_remove(place)
        });
        let name = if link.ifindex == far.ifindex && far_netns.is(netns) {
            format!("{} at the other end", link.name)
        } else {
            link.name.clone()
        };
        let has_senders = netns.run(|| {
            // The release comes first, as packets that the queue holds would be lost with it.
            let was_ours = qdisc::is_installed(link.ifindex)?;
            let saved = queue.before::<Option<qdisc::Saved>>().flatten();
            let is_left = was_ours
                || saved.is_some()
                || checksum.before::<ChecksumOffloads>().is_some()
                || receive.before::<bool>().is_some();
            done.extend(release(link, &name, is_left, &mut means)?);
            // A weir that removed the queue and was stopped then, or could not put back the other, has left the default of a new interface.
            let is_back = qdisc::put_back(link.ifindex, saved.as_ref())?;
            done.extend(was_ours.then(|| format!("{name}: the queue removed")));
            done.extend(is_back.then(|| format!("{name}: the qdisc of before put back")));
            let present = features::offloads(link)?;
            let left = if was_ours { ChecksumOffloads::of_new_veth() } else { ChecksumOffloads::default() };
            let wanted = checksum.before().unwrap_or(left).without(&present.checksums);
            if !wanted.is_empty() {
                features::leave_checksums(link.ifindex, &wanted)?;
                done.push(format!("{name}: checksum offload switched on"));
            }
            let left = if was_ours { TagInsertion::ALL.to_vec() } else { Vec::new() };
            let mut wanted = tags.before().unwrap_or(left);
            wanted.retain(|feature| !present.tag_insertions.contains(feature));
            if !wanted.is_empty() {
                features::switch(link.ifindex, &wanted, true)?;
                done.push(format!("{name}: the insertion of VLAN tags switched on"));
            }
            Ok(is_left && !link.up)
        })?;
        // By what is left the next mending knows that there are senders to let go.
        if has_senders {
            receive.leave(true)?;
        } else {
            queues.push(receive);
        }
        queue.finish();
        checksum.finish();
        tags.finish();
    }
    means.end();
    queues.into_iter().for_each(Hold::finish);
    Ok(done)
}

/// Starts the queues that send into an interface that nobody polls. One that is down tells of its senders where anything `is_left` there.
fn release(link: &Link, name: &str, is_left: bool, means: &mut Means) -> Result<Option<String>> {
    if let Some(program) = link.xdp_program {
        let who = holder::of_program(program);
        let who = who.map_or("nobody".to_string(), |process| process.to_string());
        return Err(PortError::Unsuitable {
            name: link.name.clone(),
            why: format!("has XDP program {program}, which {who} holds: that is not weir's to mend"),
        });
    }
    if !link.up {
        return Ok(is_left.then(|| {
            format!("{name}: is down, so senders are not let go: set it up (`ip link`) and mend it again")
        }));
    }
    let deferrals = match napi::deferrals(link.ifindex) {
        // No weir can have taken instances over that the kernel does not even list (Linux before 6.8).
        Err(error) if is_code(&error, libc::ENOENT) || is_code(&error, libc::EOPNOTSUPP) => return Ok(None),
        listed => listed?,
    };
    let is_deferred = deferrals.iter().any(|(_, deferral)| *deferral != Deferral::default());
    means.release(link.ifindex, Deferral::default())?;
    Ok(is_deferred.then(|| format!("{name}: its queues left to the kernel again")))
}

/// Puts back the settings and removes the interfaces and tables of this thread's namespace that runs changed or made and no run needs any more;
/// returns what was done, in words.
pub fn runs() -> Result<Vec<String>> {
    let netns = NetNs::current()?;
    let _lock = Lock::take()?;
    let mut done = Vec::new();
    let names = left::names_of(&netns)?;
    let mut settings: Vec<_> = names.iter().filter_map(|name| Setting::from_name(name)).collect();
    sort_for_putting_back(&mut settings, &link::joints()?);
    for setting in settings {
        let thing = Thing::setting(&netns, &setting.name());
        let Some(hold) = Hold::left(&thing)? else { continue };
        if let Some(before) = hold.before::<SettingBefore>().filter(SettingBefore::is_sound) {
            let path = before.put_back(setting)?;
            done.extend(path.map(|path| format!("{path}: {} again", before.was)));
        }
        hold.finish();
    }
    for ifindex in names.iter().filter_map(|name| left::made(name)) {
        let link = match Link::by_index(ifindex) {
            Err(PortError::NoInterface { .. }) => continue,
            link => link?,
        };
        let Some(hold) = Hold::left(&Thing::made(&netns, &link))? else { continue };
        link::delete(ifindex)?;
        hold.finish();
        done.push(format!(
            "the interface {} of a run removed: what its program left running has no network any more",
            link.name
        ));
    }
    // The tables go last, as they shut what the settings open.
    for name in names.iter().filter_map(|name| left::table(name)) {
        let Some(hold) = Hold::left(&Thing::table(&netns, name))? else { continue };
        if nftables::remove(name)? {
            done.push(format!("the nftables table {name} removed"));
        }
        hold.finish();
    }
    done.extend(
        nftables::remove_left_behind()?.iter().map(|name| format!("the nftables table {name} removed")),
    );
    Ok(done)
}
