//! The steps to the ESP that is wanted, and its key files.

use std::fs;

use weir_path::esp::plan::AssociationNumbers;

use super::*;
use crate::ipsec::EspKeys;
use crate::ipsec::mark_file::MarkKind;
use crate::ipsec::tests::Folder;

/// Other limits are no reason to end: they come in one step, to the key that runs.
#[test]
fn an_association_whose_limits_change_goes_on() {
    /// The place of `hard_packet_limit` in a message with an association.
    const HARD_PACKETS_AT: usize = 16 + 96 + 24;
    let messages = captured();
    let folder = Folder::new("follow-limits");
    let mut follower = Follower::new(&folder.0);
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    hear(&mut follower, &messages["newpolicy-out"]);
    let running = follower.wanted(&empty(), &BTreeSet::new()).plan;
    let mut limited = messages["newsa-gcm-esn"].clone();
    limited[HARD_PACKETS_AT..HARD_PACKETS_AT + 8].copy_from_slice(&1000_u64.to_ne_bytes());
    hear(&mut follower, &limited);
    let wanted = follower.wanted(&running, &BTreeSet::new());
    assert_eq!(wanted.plan.associations[0].lifetime.hard.packets, Some(1000));
    assert!(wanted.new_names(&running).is_empty() && wanted.keys.is_empty());
    assert!(matches!(&wanted.steps(&running)[..], [only] if *only == wanted.plan));
}

/// An association of a peer that moves, as IKE does it (MOBIKE): the key stays, the ends are others.
#[test]
fn an_association_that_moves_ends_before_it_begins() {
    let messages = captured();
    let folder = Folder::new("follow");
    let mut follower = Follower::new(&folder.0);
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    hear(&mut follower, &messages["newpolicy-out"]);
    let before = follower.wanted(&empty(), &BTreeSet::new());
    let file = PathBuf::from(before.plan.associations[0].key_file.clone().unwrap());
    let mut made = KeyFiles::new(&folder.0);
    assert_eq!(before.write_keys(&mut made), []);
    let again = &mut KeyFiles::new(&folder.0);
    assert_eq!(before.write_keys(again), [], "it is there");
    again.remove_unused(&empty()).unwrap();
    assert!(file.exists(), "it is another's");
    // Those of a plan that was refused go, and can be made again.
    made.remove_unused(&before.plan).unwrap();
    assert!(file.exists());
    made.remove_unused(&empty()).unwrap();
    assert!(!file.exists());
    assert_eq!(before.write_keys(again), []);
    assert_eq!(before.steps(&empty()).len(), 1);
    let running = before.plan;
    let mark = MarkKind::Sent.path(&file);
    assert_eq!((fs::read_to_string(&mark).unwrap(), file.exists()), ("1\n".into(), true));

    hear(&mut follower, &messages["flushsa"]);
    let mut moved = messages["newsa-gcm-esn"].clone();
    let ends: Vec<_> = (0..moved.len() - 4).filter(|&at| moved[at..at + 4] == [192, 0, 2, 2]).collect();
    ends.into_iter().for_each(|at| moved[at + 3] = 9);
    hear(&mut follower, &moved);
    let wanted = follower.wanted(&running, &BTreeSet::new());
    let [between, after] = &wanted.steps(&running)[..] else { panic!("two steps") };
    assert_eq!((between.associations.len(), between.policies[0].verb), (0, PolicyVerb::Discard));
    assert_eq!(
        (after.associations.len(), &after.associations[0].key_file),
        (1, &running.associations[0].key_file)
    );
    assert_eq!(after.associations[0].destination, IpAddr::from([192, 0, 2, 9]));
    // The change is refused in one step; in two the numbers go on behind all that could have been used.
    let mut keys = EspKeys::default();
    let mut change = |plan: &EspPlan| -> Result<Option<u64>, String> {
        let mut prepared = keys.prepare(&[(0, plan.clone())])?;
        prepared.iter().for_each(|prepared| keys.note(prepared));
        let key = prepared[0].change.keys.first_mut().and_then(Option::as_mut);
        Ok(key.map(|key| match &mut key.numbers {
            AssociationNumbers::Sent(numbers, mark) => {
                mark.begin();
                numbers.next()
            }
            AssociationNumbers::Received(highest, _) => *highest + 1,
        }))
    };
    assert_eq!(change(&running), Ok(Some(1)));
    assert!(change(after).unwrap_err().contains("has the key that \"out-00001001\" has or had"));
    assert_eq!(change(between), Ok(None));
    let first = change(after).unwrap().expect("it has numbers");
    assert!(first > crate::ipsec::marks::AHEAD, "{first} may have been used");
    // The key stays with its association, and goes with it; its mark stays.
    let mut files = KeyFiles::new(&folder.0);
    files.note_running(&running);
    files.remove_unused(after).unwrap();
    assert!(file.exists() && mark.exists());
    files.remove_unused(between).unwrap();
    assert!(!file.exists() && mark.exists());
    files.remove_unused(between).unwrap();
}

/// `weir up` is started anew, without associations, and what ran before has a successor when the next plan is wanted.
#[test]
fn a_key_goes_also_where_its_association_was_forgotten() {
    let messages = captured();
    let folder = Folder::new("follow-forgotten");
    let mut follower = Follower::new(&folder.0);
    let mut files = KeyFiles::new(&folder.0);
    let mut bring_about = |follower: &mut Follower| {
        files.note_running(&empty());
        let wanted = follower.wanted(&empty(), &BTreeSet::new());
        assert_eq!(wanted.write_keys(&mut files), []);
        files.remove_unused(&wanted.plan).unwrap();
        PathBuf::from(wanted.plan.associations[0].key_file.clone().unwrap())
    };
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    let old = bring_about(&mut follower);
    assert_eq!((bring_about(&mut follower), old.exists()), (old.clone(), true));
    hear(&mut follower, &messages["flushsa"]);
    hear(&mut follower, &messages["newsa-in"]);
    let new = bring_about(&mut follower);
    assert_eq!([old.exists(), new.exists(), MarkKind::Sent.path(&old).exists()], [false, true, true]);
}

/// `weir apply` takes all associations away, and who follows ends before it looks: who follows next gives them back.
#[test]
fn keys_stay_where_associations_were_taken_away() {
    let messages = captured();
    let folder = Folder::new("follow-taken");
    let mut follower = Follower::new(&folder.0);
    let mut files = KeyFiles::new(&folder.0);
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    let made = follower.wanted(&empty(), &BTreeSet::new()).plan;
    assert_eq!(follower.wanted(&empty(), &BTreeSet::new()).write_keys(&mut files), []);
    files.remove_unused(&made).unwrap();
    // One that was to begin, and was refused.
    hear(&mut follower, &messages["newsa-in"]);
    let refused = follower.wanted(&made, &BTreeSet::new());
    assert_eq!(
        (names(&refused), refused.write_keys(&mut files)),
        (vec!["in-00002001", "out-00001001"], vec![])
    );
    files.remove_at_end(&empty()).unwrap();
    let is_there = |of: &AssociationPlan| PathBuf::from(of.key_file.clone().unwrap()).exists();
    assert_eq!(refused.plan.associations.iter().map(is_there).collect::<Vec<_>>(), [false, true]);
}

/// The first is gone already, and the second cannot be removed.
#[test]
fn all_keys_that_can_be_removed_are() {
    let folder = Folder::new("follow-removal");
    let files = ["1.key", "2.key", "3.key"].map(|name| folder.0.join(name));
    let messages = captured();
    let mut follower = follower();
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    let mut ran = follower.wanted(&empty(), &BTreeSet::new()).plan;
    let association = ran.associations.remove(0);
    ran.associations.extend(
        files.iter().map(|file| AssociationPlan {
            key_file: Some(file.display().to_string()),
            ..association.clone()
        }),
    );
    for is_made in [false, true] {
        fs::create_dir(&files[1]).unwrap();
        fs::write(&files[2], "00").unwrap();
        let mut known = KeyFiles::new(&folder.0);
        match is_made {
            true => files.iter().for_each(|file| known.note_made(file)),
            false => known.note_running(&ran),
        }
        assert!(known.remove_unused(&empty()).unwrap_err().contains("2.key: "));
        assert!(!files[2].exists());
        fs::remove_dir(&files[1]).unwrap();
        fs::write(&files[1], "00").unwrap();
        known.remove_unused(&empty()).unwrap();
        assert!(!files[1].exists(), "it is tried again");
    }
}

/// The associations of an ESP have another order than those of the kernel, which each dump may tell in its own.
#[test]
fn the_order_of_associations_is_no_change() {
    let messages = captured();
    let mut follower = follower();
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    hear(&mut follower, &messages["newsa-in"]);
    let mut running = follower.wanted(&empty(), &BTreeSet::new()).plan;
    running.associations.reverse();
    let wanted = follower.wanted(&running, &BTreeSet::new());
    assert!(wanted.plan != running && wanted.is_as(&running));
    running.associations[0].spi += 1;
    assert!(!wanted.is_as(&running));
}
