//! Keys and marks in files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Mutex;

use weir_ipsec::lifetime::Lifetime;
use weir_ipsec::tunnel::OuterDontFragment;
use weir_path::esp::plan::EspDispatch;
use weir_path::plan::StagePlan;

use super::*;

/// A directory of its own, removed with it.
pub(super) struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weir-ipsec-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn key(&self, name: &str, byte: u8) -> String {
        let path = self.0.join(name);
        fs::write(&path, format!("{byte:02x}").repeat(20)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn association(name: &str, is_inbound: bool, key_file: String) -> AssociationPlan {
    AssociationPlan {
        name: name.into(),
        is_inbound,
        spi: 0x1000,
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        is_tunnel: true,
        algorithm: Algorithm::Aes128Gcm,
        key_file: Some(key_file),
        is_extended: false,
        window: 64,
        udp_ports: None,
        keepalive_ns: None,
        follows_peer: false,
        dont_fragment: OuterDontFragment::Copied,
        lifetime: Lifetime::default(),
    }
}

fn esp(associations: Vec<AssociationPlan>) -> [(usize, EspPlan); 1] {
    let addresses = vec![[192, 0, 2, 1].into()];
    let dispatch = EspDispatch::default();
    [(0, EspPlan { addresses, mtu_bytes: 1500, associations, policies: Vec::new(), dispatch })]
}

/// The user of a mark, who is seen but for some file systems.
fn user(mark: &Path) -> String {
    let user = weir_port::holder::of_lock(&fs::File::open(mark).unwrap()).unwrap();
    user.map_or("another process".into(), |process| process.to_string())
}

/// Waits for what the writer of marks does by itself.
fn wait_until(condition: impl Fn() -> bool) {
    let end_ns = crate::clock::now_ns() + 20_000_000_000;
    while !condition() {
        assert!(crate::clock::now_ns() < end_ns, "the marks are not written");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The first number that an outbound association may use, which begins, or that an inbound one has not received.
fn first_number(keys: &mut EspKeys, wanted: &[(usize, EspPlan)]) -> Result<u64, String> {
    let mut prepared = keys.prepare(wanted)?;
    keys.note(&prepared[0]);
    Ok(match prepared.remove(0).change.keys.remove(0).unwrap().numbers {
        AssociationNumbers::Sent(numbers, mut mark) => {
            mark.begin();
            numbers.next()
        }
        AssociationNumbers::Received(highest, _) => highest + 1,
    })
}

/// The mark of what was received says after an end what was told last, and after a kill what was told a second ago.
#[test]
fn a_start_knows_what_one_before_received() {
    let folder = Folder::new("received");
    let key = folder.key("in.key", 1);
    let mark = MarkKind::Received.path(Path::new(&key));
    let wanted = esp(vec![association("in", true, key.clone())]);
    let mut keys = EspKeys::default();
    keys.check(&wanted).unwrap();
    assert!(!mark.exists(), "a check makes nothing");
    let prepared = keys.prepare(&wanted).unwrap().remove(0).change.keys.remove(0).unwrap();
    let AssociationNumbers::Received(0, mut received) = prepared.numbers else { panic!("nothing received") };
    let told = EspKeys::default().prepare(&wanted).unwrap_err();
    assert!(told.ends_with(&format!("{} uses this key", user(&mark))), "{told}");
    received.received(77);
    let says = |next: u64| fs::read_to_string(&mark).unwrap().contains(&format!("next {next:020}\n"));
    wait_until(|| says(78));
    received.received(99);
    drop(received);
    drop(keys);
    assert!(says(100));
    assert_eq!(first_number(&mut EspKeys::default(), &wanted), Ok(100));

    let whole = fs::read_to_string(&mark).unwrap();
    for text in ["", &whole[..30], &whole.replace("next", "nxet"), "1\n"] {
        fs::write(&mark, text).unwrap();
        let why = EspKeys::default().prepare(&wanted).unwrap_err();
        assert!(why.contains("damaged") && why.contains("`rm "), "{text:?}: {why}");
        assert!(EspKeys::default().check(&wanted).is_err());
    }
    fs::write(&mark, whole.replace("0100\n", "4294967296\n")).unwrap();
    assert!(EspKeys::default().check(&wanted).unwrap_err().contains("all sequence numbers"));
    // Another key in the file has received nothing.
    folder.key("in.key", 2);
    assert_eq!(first_number(&mut EspKeys::default(), &wanted), Ok(1));
    fs::set_permissions(&mark, fs::Permissions::from_mode(0o666)).unwrap();
    let why = EspKeys::default().check(&wanted).unwrap_err();
    assert!(why.contains("have packets taken twice"), "{why}");
}

#[test]
fn limits_and_the_window_change_without_another_key() {
    use weir_ipsec::lifetime::Limits;
    let folder = Folder::new("limits");
    let before = association("in", true, folder.key("in.key", 1));
    let mut keys = EspKeys::default();
    let prepared = keys.prepare(&esp(vec![before.clone()])).unwrap().remove(0);
    keys.note(&prepared);
    let hard = Limits { packets: Some(7), ..Limits::default() };
    let lifetime = Lifetime { hard, ..Lifetime::default() };
    let wanted = esp(vec![AssociationPlan { window: 1024, lifetime, ..before.clone() }]);
    keys.check_going_on(&wanted).unwrap();
    let changed = keys.prepare(&wanted).unwrap().remove(0);
    assert!(matches!(changed.change.keys[..], [None]), "it goes on");
    keys.note(&changed);
    assert_eq!(keys.plan(0).unwrap().associations[0].window, 1024);
    // Another address is another association.
    let wanted = esp(vec![AssociationPlan { source: [192, 0, 2, 3].into(), ..before }]);
    let why = keys.prepare(&wanted).unwrap_err();
    assert!(why.contains("keeps its key if `window`, `soft` or `hard` alone change"), "{why}");
}

#[test]
fn a_start_never_uses_what_one_before_could_have() {
    let folder = Folder::new("starts");
    let key = folder.key("out.key", 1);
    let wanted = esp(vec![association("out", false, key.clone())]);
    let why = EspKeys::default().prepare(&wanted).unwrap_err();
    assert!(why.contains("is missing") && why.contains("echo 1 >"), "{why}");
    fs::write(MarkKind::Sent.path(Path::new(&key)), "1\n").unwrap();
    let mut firsts = Vec::new();
    for _ in 0..3 {
        firsts.push(first_number(&mut EspKeys::default(), &wanted).unwrap());
    }
    assert_eq!(firsts, [1, 1 + AHEAD_SHORT, 1 + 2 * AHEAD_SHORT]);
    // The file stays, with another key in it.
    folder.key("out.key", 2);
    let why = EspKeys::default().prepare(&wanted).unwrap_err();
    assert!(why.contains("of another key"), "{why}");
    fs::write(MarkKind::Sent.path(Path::new(&key)), "nonsense").unwrap();
    assert!(EspKeys::default().prepare(&wanted).unwrap_err().contains("says no sequence number"));
}

/// A mark that was cut off anywhere never invites to begin with its key once more.
#[test]
fn a_damaged_mark_uses_its_key_up() {
    let folder = Folder::new("damaged");
    let key = folder.key("out.key", 1);
    let mark = MarkKind::Sent.path(Path::new(&key));
    let wanted = esp(vec![association("out", false, key)]);
    fs::write(&mark, "1\n").unwrap();
    first_number(&mut EspKeys::default(), &wanted).unwrap();
    let whole = fs::read_to_string(&mark).unwrap();
    let (next, key_line) = (whole.find("next").unwrap(), whole.find("key").unwrap());
    let middle_gone = format!("{}{}", &whole[..next], &whole[key_line..]);
    // The key line is whole without its line's end.
    let cut = (0..whole.len() - 1).map(|end| whole[..end].to_string());
    for text in cut.chain([middle_gone, whole.replace("next", "nxet"), whole.replace("key ", "key g")]) {
        fs::write(&mark, &text).unwrap();
        let why = EspKeys::default().prepare(&wanted).unwrap_err();
        assert!(
            why.contains("damaged") && why.contains("a new key") && !why.contains("echo"),
            "{text:?}: {why}"
        );
    }
    fs::write(&mark, &whole).unwrap();
    assert_eq!(first_number(&mut EspKeys::default(), &wanted), Ok(1 + AHEAD_SHORT));
}

/// Of a link the mark is that of the file that is meant: under whatever name, no number is used twice.
#[test]
fn a_key_has_one_mark_under_all_links() {
    use std::os::unix::fs::symlink;
    let (folder, links) = (Folder::new("meant"), Folder::new("links"));
    let key = folder.key("out.key", 1);
    let mark = MarkKind::Sent.path(Path::new(&key));
    fs::write(&mark, "1\n").unwrap();
    let (one, two, around) = (links.0.join("one.key"), links.0.join("two.key"), links.0.join("around"));
    symlink(&key, &one).unwrap();
    symlink("one.key", &two).unwrap();
    symlink(&folder.0, &around).unwrap();
    let mut firsts = Vec::new();
    for name in [one.clone(), two, around.join("out.key"), key.into()] {
        let wanted = esp(vec![association("out", false, name.display().to_string())]);
        firsts.push(first_number(&mut EspKeys::default(), &wanted).unwrap());
    }
    assert_eq!(firsts, [0, 1, 2, 3].map(|starts| 1 + starts * AHEAD_SHORT));
    assert!(!MarkKind::Sent.path(&one).exists());

    // A mark that is left beside a link says numbers that may have been used.
    fs::write(MarkKind::Sent.path(&one), "70000000\n").unwrap();
    let wanted = esp(vec![association("out", false, one.display().to_string())]);
    let why = EspKeys::default().prepare(&wanted).unwrap_err();
    assert!(why.contains("beside a link counts for nobody") && why.contains("otherwise `rm"), "{why}");
    assert!(EspKeys::default().check(&wanted).is_err());
    fs::rename(MarkKind::Sent.path(&one), &mark).unwrap();
    assert_eq!(first_number(&mut EspKeys::default(), &wanted), Ok(70_000_000));

    // A user who may write in the directory of the key file may exchange its mark.
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
    let why = EspKeys::default().prepare(&wanted).unwrap_err();
    assert!(why.contains("others may write in this directory"), "{why}");
}

/// A backup that is put in the place of a mark that is used or copied over it, a removed one, and what is no file at all.
#[test]
fn a_mark_that_is_removed_or_replaced_is_put_back() {
    let folder = Folder::new("replaced");
    let keys_of = [("out.key", false, MarkKind::Sent), ("in.key", true, MarkKind::Received)];
    let wanted = esp(keys_of
        .map(|(name, is_in, _)| association(name, is_in, folder.key(name, is_in.into())))
        .to_vec());
    let marks = keys_of.map(|(name, _, kind)| kind.path(&folder.0.join(name)));
    fs::write(&marks[0], "1\n").unwrap();
    let mut keys = EspKeys::default();
    let prepared = keys.prepare(&wanted).unwrap();
    let says = || marks.each_ref().map(|mark| fs::read_to_string(mark).unwrap_or_default());
    let before = says();
    let backup = folder.0.join("backup");
    let changes: [&dyn Fn(&Path); 4] = [
        &|mark| {
            fs::write(&backup, "1\n").unwrap();
            fs::rename(&backup, mark).unwrap();
        },
        &|mark| fs::remove_file(mark).unwrap(),
        // The file stays the same.
        &|mark| fs::write(mark, "1\n").unwrap(),
        &|mark| fs::write(mark, "1\n".repeat(200)).unwrap(),
    ];
    for change in changes {
        marks.iter().for_each(|mark| change(mark));
        wait_until(|| says() == before);
    }
    // The lock came back with them.
    let told = EspKeys::default().prepare(&wanted).unwrap_err();
    assert!(told.ends_with(&format!("{} uses this key", user(&marks[0]))), "{told}");
    fs::rename(&marks[0], &backup).unwrap();
    drop((prepared, keys));
    assert!(fs::read_to_string(&marks[0]).unwrap().contains("weir sequence"), "put back at the end");
    for (at, mark) in marks.iter().enumerate() {
        let text = fs::read_to_string(mark).unwrap();
        fs::remove_file(mark).unwrap();
        let made = std::process::Command::new("mkfifo").arg(mark).status().unwrap();
        assert!(made.success());
        for why in
            [EspKeys::default().check(&wanted).unwrap_err(), EspKeys::default().prepare(&wanted).unwrap_err()]
        {
            assert!(why.contains("it is not a regular file"), "{at}: {why}");
        }
        fs::remove_file(mark).unwrap();
        fs::write(mark, text).unwrap();
    }
}

/// A mark that goes with its key to another name says no number of the ones that are used after that.
#[test]
fn a_mark_that_is_renamed_while_its_key_is_used_uses_the_key_up() {
    let folder = Folder::new("renamed");
    let keys_of = [("out.key", false, MarkKind::Sent), ("in.key", true, MarkKind::Received)];
    let wanted = |prefix: &str| {
        keys_of.map(|(name, is_in, _)| {
            let path = folder.0.join(format!("{prefix}{name}")).display().to_string();
            esp(vec![association(name, is_in, path)])
        })
    };
    let marks = keys_of.map(|(name, is_in, kind)| kind.path(Path::new(&folder.key(name, is_in.into()))));
    fs::write(&marks[0], "1\n").unwrap();
    let mut keys = EspKeys::default();
    let [mut sent, mut received] =
        wanted("").map(|wanted| keys.prepare(&wanted).unwrap().remove(0).change.keys.remove(0).unwrap());
    let AssociationNumbers::Sent(_, mark) = &mut sent.numbers else { panic!("it sends") };
    mark.begin();
    for (name, _, kind) in keys_of {
        let [before, after] = ["", "moved-"].map(|prefix| folder.0.join(format!("{prefix}{name}")));
        fs::rename(&before, &after).unwrap();
        fs::rename(kind.path(&before), kind.path(&after)).unwrap();
    }
    wait_until(|| marks.iter().all(|mark| mark.exists()));
    mark.want(10 * AHEAD_SHORT);
    wait_until(|| mark.safe() == 10 * AHEAD_SHORT);
    mark.end(9 * AHEAD_SHORT);
    let AssociationNumbers::Received(_, mark) = &mut received.numbers else { panic!("it receives") };
    mark.received(77);
    drop((sent, received, keys));
    for wanted in wanted("moved-") {
        let why = first_number(&mut EspKeys::default(), &wanted).unwrap_err();
        assert!(why.contains("all sequence numbers"), "{why}");
    }
}

/// A directory in the place of a mark can be replaced by no file.
#[test]
fn a_mark_that_cannot_be_written_is_told_once() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let folder = Folder::new("unwritable");
    let key = folder.key("in.key", 1);
    let mark = MarkKind::Received.path(Path::new(&key));
    let mut keys = EspKeys::telling(|told| TOLD.lock().unwrap().push(told));
    let prepared = keys.prepare(&esp(vec![association("in", true, key)])).unwrap();
    for tries in 1..3 {
        fs::remove_file(&mark).unwrap();
        fs::create_dir(&mark).unwrap();
        let told = |what: &str| TOLD.lock().unwrap().iter().filter(|told| told.contains(what)).count();
        wait_until(|| told("cannot be written") == tries);
        fs::remove_dir(&mark).unwrap();
        wait_until(|| told("is written again") == tries);
        assert!(mark.is_file() && told("cannot be written") == tries);
    }
    drop((prepared, keys));
}

/// A user who may write a mark can have the numbers of its key used twice.
#[test]
fn marks_and_keys_that_others_may_change_are_refused() {
    let folder = Folder::new("owners");
    let key = folder.key("out.key", 1);
    let mark = MarkKind::Sent.path(Path::new(&key));
    fs::write(&mark, "1").unwrap();
    let wanted = esp(vec![association("out", false, key.clone())]);
    for mode in [0o666, 0o620, 0o602] {
        fs::set_permissions(&mark, fs::Permissions::from_mode(mode)).unwrap();
        for why in
            [EspKeys::default().check(&wanted).unwrap_err(), EspKeys::default().prepare(&wanted).unwrap_err()]
        {
            assert!(why.contains("others may write this mark") && why.contains("out.key.sequence"), "{why}");
        }
    }
    fs::set_permissions(&mark, fs::Permissions::from_mode(0o644)).unwrap();
    if !weir_port::sys::is_root() {
        return;
    }
    const NOBODY: u32 = 65534;
    for path in [&mark, Path::new(&key), &folder.0] {
        std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap();
        // A process without the right to open files of others, as one that carries packets, is told the same.
        let closed = key_file::closed(path, &std::io::ErrorKind::PermissionDenied.into());
        for why in [EspKeys::default().prepare(&wanted).unwrap_err(), closed] {
            assert!(why.contains("belongs to user 65534") && why.contains("`chown root"), "{why}");
        }
        std::os::unix::fs::chown(path, Some(0), None).unwrap();
    }
    EspKeys::default().prepare(&wanted).unwrap();
}

#[test]
fn a_key_is_one_associations() {
    let folder = Folder::new("keys");
    let (one, two) = (folder.key("one.key", 1), folder.key("two.key", 2));
    fs::write(MarkKind::Sent.path(Path::new(&one)), "1").unwrap();
    let both = |second: &str| {
        esp(vec![association("out", false, one.clone()), association("in", true, second.into())])
    };
    let why = EspKeys::default().prepare(&both(&folder.key("same.key", 1))).unwrap_err();
    assert!(why.contains("\"out\" has or had"), "{why}");
    let mut keys = EspKeys::default();
    let prepared = keys.prepare(&both(&two)).unwrap();
    keys.note(&prepared[0]);
    // An association that runs as before goes on; one that is other needs another key.
    let again = keys.prepare(&both(&two)).unwrap();
    assert!(again[0].change.keys.iter().all(Option::is_none));
    let mut other = both(&two);
    other[0].1.associations[0].spi = 0x2000;
    assert!(keys.prepare(&other).unwrap_err().contains("needs a key of its own"));
    // Nor may another process use it.
    assert!(EspKeys::default().prepare(&both(&two)).unwrap_err().contains("uses this key"));
}

/// `weir sa follow` tries again each second.
#[test]
fn a_change_that_fails_uses_no_number_up() {
    let folder = Folder::new("failing");
    let (one, two) = (folder.key("one.key", 1), folder.key("two.key", 2));
    let [mark, other] = [&one, &two].map(|key| MarkKind::Sent.path(Path::new(key)));
    fs::write(&mark, "7").unwrap();
    fs::write(&other, "1").unwrap();
    let both = esp(vec![association("one", false, one.clone()), association("two", false, two.clone())]);
    let says =
        |mark: &Path, next: u64| fs::read_to_string(mark).unwrap().contains(&format!("next {next:020}\n"));
    let mut others = EspKeys::default();
    let theirs = others.prepare(&esp(vec![association("two", false, two)])).unwrap();
    for _ in 0..3 {
        let mut keys = EspKeys::default();
        // A trial says it of the one that is to blame, and locks nothing.
        let [one, two] = [0, 1].map(|of| esp(vec![both[0].1.associations[of].clone()]));
        assert_eq!((keys.check(&one), keys.check(&one)), (Ok(()), Ok(())));
        assert!(keys.check(&two).unwrap_err().contains("uses this key"));
        assert!(keys.prepare(&both).unwrap_err().contains("uses this key"));
        // A change that fails later.
        drop(keys.prepare(&one).unwrap());
        // Waits for its marks.
        drop(keys);
        assert!(says(&mark, 7), "{:?}", fs::read_to_string(&mark));
    }
    drop(theirs);
    // An association that has ended has let its key go.
    assert_eq!(others.check(&esp(vec![both[0].1.associations[1].clone()])), Ok(()));
    drop(others);
    // An association that has begun may have used every number below its mark.
    let mut keys = EspKeys::default();
    let mut prepared = keys.prepare(&both).unwrap();
    let begun = prepared[0].change.keys.iter_mut().flatten().next().unwrap();
    let AssociationNumbers::Sent(_, marking) = &mut begun.numbers else { panic!("it sends") };
    marking.begin();
    drop(prepared);
    drop(keys);
    assert!(says(&mark, 7 + AHEAD_SHORT), "{:?}", fs::read_to_string(&mark));
    assert!(says(&other, 1), "this one never began: {:?}", fs::read_to_string(&other));
}

#[test]
fn keys_that_others_can_read_are_refused_and_none_is_shown() {
    let folder = Folder::new("modes");
    let key = folder.key("in.key", 0xab);
    let wanted = esp(vec![association("in", true, key.clone())]);
    EspKeys::default().prepare(&wanted).unwrap();
    for mode in [0o640, 0o604, 0o620, 0o666] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let why = EspKeys::default().prepare(&wanted).unwrap_err();
        assert!(why.contains("others may read"), "{mode:o}: {why}");
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    for text in ["abab", "", "0x", "zz", &"ab".repeat(300)] {
        fs::write(&key, text).unwrap();
        let why = EspKeys::default().prepare(&wanted).unwrap_err();
        assert!(!why.contains("abab") && why.contains("in.key"), "{why}");
    }
}

#[test]
fn all_keys_that_are_missing_are_told_at_once() {
    let folder = Folder::new("missing");
    let path = |name: &str| folder.0.join(name).display().to_string();
    let wanted =
        esp(vec![association("out", false, path("out.key")), association("in", true, path("in.key"))]);
    let why = EspKeys::default().prepare(&wanted).unwrap_err();
    let told: Vec<_> = why.lines().collect();
    let [out, inbound] = told[..] else { panic!("{why}") };
    assert!(out.starts_with("sa \"out\": ") && inbound.starts_with("sa \"in\": "), "{why}");
    assert!(out.contains("umask 077; od ") && out.contains("-N20") && out.contains("echo 1 > "), "{out}");
    assert!(
        inbound.contains("the key that the peer sends with") && inbound.contains("umask 077"),
        "{inbound}"
    );
    assert!(!inbound.contains("od "), "a key that is made here is not the peer's: {inbound}");
    fs::write(folder.0.join("out.key.sequence"), "1").unwrap();
    let why = EspKeys::default().prepare(&wanted).unwrap_err();
    assert!(!why.contains("echo 1 > "), "a mark that is there stays: {why}");
}

#[test]
fn a_mark_that_is_missing_beside_its_key_is_told_with_the_keys() {
    let folder = Folder::new("missing-mark");
    let path = |name: &str| folder.0.join(name).display().to_string();
    let [(_, wanted)] =
        esp(vec![association("out", false, path("out.key")), association("in", true, path("in.key"))]);
    let stage = StagePlan { name: "esp".into(), kind: StageKind::Esp(Box::new(wanted)) };
    let plan = Plan { stages: vec![stage], ..Plan::default() };
    for name in ["out.key", "in.key"] {
        fs::write(path(name), "00").unwrap();
    }
    let told = missing_keys(&plan);
    assert_eq!(told.len(), 1, "a key that opens needs no mark: {told:?}");
    assert!(
        told[0].starts_with("sa \"out\": ") && told[0].contains("out.key.sequence is missing"),
        "{told:?}"
    );
    fs::write(path("out.key.sequence"), "1").unwrap();
    assert!(missing_keys(&plan).is_empty());
    fs::rename(path("out.key"), path("meant.key")).unwrap();
    std::os::unix::fs::symlink("meant.key", path("out.key")).unwrap();
    let told = missing_keys(&plan);
    assert!(told.len() == 1 && told[0].contains("a mark beside a link counts for nobody"), "{told:?}");
}
