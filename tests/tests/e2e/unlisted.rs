//! An image that the loader's list lacks is recorded because code runs in it
//! (tests/programs/unlisted.c).

use std::path::{Path, PathBuf};
use std::process::Command;
use stk_schema::Ticks;
use stk_schema::event::ModuleFlags;
use stk_tests::recorded::Recorded;
use stk_tests::stk::{self, Speedscope};
use stk_tests::wine::{self, Folder, Inject, Machine};

/// Compiles a program of tests/programs into `folder`.
fn compile(folder: &Folder, source: &str, name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    let output = folder.file(name);
    let mut compiler = Command::new(wine::c_compiler());
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&output).arg(&source).args(options);
    assert!(compiler.status().expect("the machine's C compiler runs").success());
    output
}

#[test]
fn code_in_an_image_that_the_loader_does_not_know_has_its_module_and_whole_stacks() {
    let folder = Folder::new("unlisted");
    let program = compile(&folder, "unlisted.c", "unlisted.exe", &[]);
    let dll = compile(&folder, "unlisted_dll.c", "unlisted.dll", &["-shared", "-nostdlib", "-Wl,-e,rounds"]);
    let seconds = if Machine::current().is_emulated() { "20" } else { "4" };
    let output = wine::windows_path(&folder.file("unlisted.stk"));
    let program = wine::windows_path(&program);
    let arguments = ["-o", &output, "-r", "500", "--", &program, seconds];
    let finished = Inject::launch_in(&folder, folder.path(), &arguments);
    finished.expect(7);
    assert!(finished.stdout.contains("unmapped 0"), "{}", finished.stdout);
    let line = finished.stdout.lines().find_map(|line| line.strip_prefix("unlisted ")).expect("the address");
    let base = line.split(' ').next().and_then(|base| u64::from_str_radix(base, 16).ok()).expect("hex");

    let recorded = Recorded::open(&folder.file("unlisted.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    let unlisted: Vec<_> =
        recorded.modules.values().filter(|module| module.flags.contains(ModuleFlags::UNLISTED)).collect();
    let [module] = unlisted[..] else { panic!("one unlisted image was expected: {unlisted:#?}") };
    assert_eq!(module.base, base, "{module:?}");
    assert!(module.path.eq_ignore_ascii_case(&wine::windows_path(&dll)), "{module:?}");
    assert!(module.has_tables() && module.unload != Ticks::MAX && module.unload > module.load, "{module:?}");
    let inside = recorded.samples.iter().filter(|sample| module.holds(sample.ip, sample.time)).count();
    let at_its_addresses = |address: u64| (base..base + module.size).contains(&address);
    let before = recorded.samples.iter().filter(|sample| at_its_addresses(sample.ip)).count() - inside;
    assert!(inside > 0 && before == 0, "{inside} samples in it, {before} before its load");

    let info = stk::json(folder.path(), &["info", "--json", "unlisted.stk"]);
    let modules = info["traces"][0]["modules"].as_array().expect("modules");
    let of_stk: Vec<_> = modules.iter().filter(|module| module["unlisted"] == true).collect();
    assert_eq!(of_stk.len(), 1, "{of_stk:?}");
    assert_ne!(of_stk[0]["code_id"], "", "{of_stk:?}");

    let speedscope = Speedscope::of(folder.path(), "unlisted.stk", folder.path());
    let through =
        |stack: &[stk::Frame]| stack.windows(2).any(|pair| pair[0].is("rounds") && pair[1].is("back"));
    let chains: Vec<&[stk::Frame]> =
        speedscope.stacks().map(|(_, stack)| stack).filter(|stack| through(stack)).collect();
    assert!(!chains.is_empty(), "no stack goes through it");
    let cut = chains.iter().find_map(|stack| stk::incomplete(stack));
    assert_eq!(cut, None, "the stacks behind it reach their thread's start");
}
