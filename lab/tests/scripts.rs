//! Scripts of the tree, in another one, whose programs are scripts: what `compare.sh` says of figures that are missing, and how it ends;
//! that `debian_kernel.sh` bears a space in the path of its tree; that `.ci/run` ends as the tests did; that `verify.sh` and `make soak` do
//! not pass where their tests would be skipped; and how `test.sh` ends where a program cannot be built.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts");

/// A tree whose path has a space, and a folder of programs that its scripts find before others.
struct Tree {
    folder: PathBuf,
}

fn script(name: &str) -> String {
    fs::read_to_string(Path::new(SCRIPTS).join(name)).unwrap()
}

impl Tree {
    fn new() -> Tree {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-scripts-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let tree = Tree { folder };
        tree.write("a tree/rust-toolchain.toml", "channel = \"1.2.3\"\n");
        tree.write("a tree/scripts/rust.sh", &script("rust.sh"));
        tree.program("rustc", "echo rustc 1.2.3");
        tree
    }

    /// A first revision, with these programs: `weir`, of which `--json` is given last, and the test `quiet`.
    fn with_revision(weir: &str, quiet: &str) -> Tree {
        let tree = Tree::new();
        tree.write("a tree/Cargo.toml", "");
        tree.write("a tree/.gitignore", "target\n");
        tree.write("a tree/scripts/compare.sh", &script("compare.sh"));
        tree.program("jq", "cat");
        tree.program(
            "cargo",
            "mkdir -p \"$CARGO_TARGET_DIR\"/release \"$CARGO_TARGET_DIR\"/debug/deps
            cp programs/weir \"$CARGO_TARGET_DIR\"/release
            cp programs/quiet \"$CARGO_TARGET_DIR\"/debug/deps/quiet-1
            mkdir -p \"$CARGO_TARGET_DIR\"/release/examples
            cp \"${0%/*}\"/steer_bench \"$CARGO_TARGET_DIR\"/release/examples
            echo \"$RUSTUP_TOOLCHAIN\" >>\"$0.toolchains\"",
        );
        tree.program(
            "steer_bench",
            "echo 'IPv4, 2 workers                      weir                             7.62 [7.44-7.64]'
            echo 'floor: cycles a packet, IPv4, 2 workers: 7.62, at most 30.00: held'",
        );
        tree.git(&["init", "-q"]);
        tree.write("a tree/rust-toolchain.toml", "channel = \"1.0.0\"\n");
        tree.revision(weir, quiet);
        tree.write("a tree/rust-toolchain.toml", "channel = \"1.2.3\"\n");
        tree
    }

    /// Another revision.
    fn revision(&self, weir: &str, quiet: &str) {
        for (name, text) in [("weir", weir), ("quiet", quiet)] {
            self.write(&format!("a tree/programs/{name}"), &format!("#!/bin/bash\n{text}\n"));
        }
        self.git(&["add", "."]);
        self.git(&["-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "A revision"]);
    }

    /// A program that the script finds before others.
    fn program(&self, name: &str, text: &str) {
        self.write(&format!("path/{name}"), &format!("#!/bin/bash\nset -e\n{text}\n"));
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    fn git(&self, arguments: &[&str]) {
        let done =
            Command::new("git").arg("-C").arg(self.folder.join("a tree")).args(arguments).output().unwrap();
        assert!(done.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Compares a row of the last revision but one with that of the tree, in three pairs.
    fn compare(&self, row: &str) -> Output {
        self.command("compare.sh").args(["HEAD~1", "3", row]).env("COMPARE_AWAKE", "1").output().unwrap()
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new(self.folder.join("a tree/scripts").join(script));
        command.env("PATH", format!("{}/path:{}", self.folder.display(), std::env::var("PATH").unwrap()));
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO_TARGET_DIR");
        command
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // It is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A `weir` that writes such a figure of `epair` to its last argument.
fn weir(figure: &str) -> String {
    format!("echo 'epair-one {figure}' >\"${{!#}}\"")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn figures_as_good_as_before_are_held() {
    let tree = Tree::with_revision(&weir("2"), "");
    tree.revision(&weir("2"), "");
    let done = tree.compare("epair");
    assert!(done.status.success() && said(&done).contains(" 1.000 [1.000-1.000] of 3 pairs"), "{done:?}");
}

#[test]
fn a_program_that_gives_no_figure_any_more_is_missed() {
    for failing in ["exit 3", "", &format!("{}; exit 3", weir("2"))] {
        let tree = Tree::with_revision(&weir("2"), "");
        tree.revision(failing, "");
        let done = tree.compare("epair");
        assert_eq!(done.status.code(), Some(1), "{failing}: {done:?}");
        let is_told = said(&done).contains("MISSED") || said(&done).contains("pair 2: failed");
        assert!(is_told, "{failing}: {done:?}");
    }
}

#[test]
fn a_row_that_only_this_tree_has_is_left_out() {
    let tree = Tree::with_revision("exit 3", "");
    tree.revision(&weir("2"), "");
    let done = tree.compare("epair");
    assert!(done.status.success(), "{done:?}");
    assert!(said(&done).contains("left out: 0 pairs"), "{done:?}");
}

#[test]
fn a_row_without_a_figure_is_said() {
    let tree = Tree::with_revision("", "");
    tree.revision("", "");
    let done = tree.compare("epair");
    assert!(said(&done).contains("epair: neither tree has told a figure"), "{done:?}");
    assert_eq!(done.status.code(), Some(1), "{done:?}");
}

#[test]
fn a_row_of_cycles_is_compared_by_its_name() {
    let tree = Tree::with_revision("", "");
    tree.revision("#", "");
    let done = tree.compare("steer");
    let expected = "floor: steer-IPv4,-2-workers-weir ";
    let line = said(&done).lines().find(|line| line.starts_with(expected)).map(str::to_string);
    assert!(line.is_some_and(|line| line.contains(" 1.000 [1.000-1.000] of 3 pairs")), "{done:?}");
}

#[test]
fn a_figure_of_a_test_is_that_of_its_last_try_and_bears_its_name() {
    let quiet = |tries: &[&str]| {
        let tries: String = tries.iter().map(|ms| format!("echo '    p50 0.1 ms, p99 {ms} ms'\n")).collect();
        format!(
            "{tries}echo 'test one ... ok (1.0 s)'\necho '    p50 0.1 ms, p99 4.00 ms'\necho 'test two ... ok (1.0 s)'"
        )
    };
    let tree = Tree::with_revision("", &quiet(&["2.00"]));
    tree.revision("", &quiet(&["9.00", "2.00"]));
    let done = tree.compare("quiet");
    for name in ["quiet-one", "quiet-two"] {
        let line = said(&done).lines().find(|line| line.contains(name)).map(str::to_string);
        assert!(line.is_some_and(|line| line.contains(" 1.000 [1.000-1.000] of 3 pairs")), "{done:?}");
    }
}

#[test]
fn both_trees_are_built_by_the_toolchain_of_this_one() {
    let tree = Tree::with_revision(&weir("2"), "");
    tree.revision(&weir("2"), "");
    assert!(tree.compare("epair").status.success());
    let toolchains = fs::read_to_string(tree.folder.join("path/cargo.toolchains")).unwrap();
    assert!(!toolchains.is_empty() && toolchains.lines().all(|line| line == "1.2.3"), "{toolchains}");
}

#[test]
fn a_tree_that_was_not_unpacked_to_its_end_is_unpacked_anew() {
    let tree = Tree::with_revision(&weir("2"), "");
    tree.revision(&weir("2"), "");
    tree.program("tar", "PATH=${PATH#*:}; [ -e \"$0.cut\" ] || { touch \"$0.cut\"; tar \"$@\" Cargo.toml; exit 1; }; tar \"$@\"");
    assert!(!tree.compare("epair").status.success());
    let done = tree.compare("epair");
    assert!(done.status.success() && said(&done).contains("held"), "{done:?}");
}

/// A machine that does nothing: its first files are kept.
#[test]
fn a_machine_with_the_kernel_of_a_release_bears_a_space_in_the_path() {
    let tree = Tree::new();
    let text =
        script("debian_kernel.sh").replace("/usr/share/keyrings/debian-archive-keyring.gpg", "/etc/passwd");
    tree.write("a tree/scripts/debian_kernel.sh", &text);
    tree.write("a tree/scripts/setup.sh", "#!/bin/sh\n");
    tree.write("a tree/target/debian-kernel/bookworm/version", "1.2\n");
    for (name, text) in [
        ("uname", "echo x86_64"),
        ("id", "echo 0"),
        ("apt-get", ""),
        ("busybox", ""),
        ("modprobe", "touch \"$2/$6.ko.xz\"; echo \"insmod $2/$6.ko.xz \""),
        ("cpio", "cp -r . \"${0%/*}/first\""),
        (
            "qemu-system-x86_64",
            "for word; do case $word in file:*) cp \"$0.said\" \"${word#file:}\" ;; esac; done",
        ),
    ] {
        tree.program(name, text);
    }
    tree.write("path/qemu-system-x86_64.said", "debian-kernel: Linux 1.2\ndebian-kernel: status 0\n");
    tree.write("a tree/target/debian-kernel/bookworm/kernel/one", "");
    let done =
        tree.command("debian_kernel.sh").args(["--", "true"]).env("WEIR_BIN", "/bin/true").output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let read = |name: &str| fs::read_to_string(tree.folder.join(name)).unwrap();
    assert_eq!(read("path/first/modules/order").lines().count(), 4);
    let cache = tree.folder.join("a tree/target/debian-kernel/bookworm");
    for (name, line, path) in [
        ("path/first/init", "exec $b switch_root /root ", "machine.sh"),
        ("a tree/target/debian-kernel/bookworm/machine.sh", "bash ", "tests.sh"),
        ("a tree/target/debian-kernel/bookworm/machine.sh", "mount --bind ", "kernel/lib/modules/1.2"),
    ] {
        let text = read(name);
        let rest = text.lines().find_map(|text| text.strip_prefix(line)).unwrap();
        let words = Command::new("sh").args(["-c", &format!("printf '%s\\n' {rest}")]).output().unwrap();
        let path = cache.join(path);
        assert!(said(&words).lines().any(|word| Path::new(word) == path), "{line}{rest}");
    }
}

#[test]
fn the_ci_ends_as_the_tests_did() {
    let tree = Tree::new();
    tree.write("a tree/.ci/run", &script("../.ci/run"));
    tree.write("a tree/scripts/setup.sh", "#!/bin/sh\n");
    // The build beside the rest, which ends before it.
    tree.program("cargo", "[[ $1 != build ]] || echo $$ >\"$0.number\"");
    for status in [0, 3] {
        tree.program(
            "make",
            &format!(
                "until [[ -s ${{0%/*}}/cargo.number ]]; do sleep 0.01; done
                while kill -0 \"$(cat \"${{0%/*}}/cargo.number\")\" 2>/dev/null; do sleep 0.01; done
                exit {status}"
            ),
        );
        let done = tree.command("../.ci/run").output().unwrap();
        assert_eq!(done.status.code(), Some(status), "{done:?}");
    }
}

#[test]
fn steps_that_need_root_fail_without_it() {
    let tree = Tree::new();
    tree.write("a tree/scripts/verify.sh", &script("verify.sh"));
    tree.write("a tree/fuzz/tests/targets.rs", "");
    tree.write("a tree/Makefile", &script("../Makefile"));
    tree.write("a tree/scripts/setup.sh", "#!/bin/sh\n");
    tree.program("id", "echo 1000");
    tree.program("cargo", "");
    for step in ["plain-pairs", "limits", "topologies", "programs"] {
        let done = tree.command("verify.sh").arg(step).output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{step}: {done:?}");
        assert!(said(&done).contains("run it as root"), "{step}: {done:?}");
    }
    let path = format!("{}/path:{}", tree.folder.display(), std::env::var("PATH").unwrap());
    let mut soak = Command::new("make");
    let done = soak.arg("-C").arg(tree.folder.join("a tree")).arg("soak").env("PATH", path).output().unwrap();
    assert!(!done.status.success() && said(&done).contains("run it as root"), "{done:?}");
}

#[test]
fn tests_are_counted_where_the_program_cannot_be_built() {
    let tree = Tree::new();
    tree.write("a tree/scripts/test.sh", &script("test.sh"));
    tree.write("a tree/scripts/awake.sh", "#!/bin/sh\nexec \"$@\"\n");
    tree.write("a tree/scripts/setup.sh", "#!/bin/sh\n");
    tree.write("a tree/.cargo/config.toml", "PROPTEST_RNG_SEED = \"1\"\n");
    tree.program(
        "cargo",
        "case \"$*\" in
            build*) exit 101 ;;
            *--no-fail-fast*--lib*) echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured' ;;
        esac",
    );
    let done = tree.command("test.sh").env_remove("WEIR_BIN").output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let said = said(&done);
    assert!(
        said.contains("weir could not be built") && said.contains("2 passed, 0 failed, 0 skipped"),
        "{said}"
    );
}
