//! One step, or a chain of calls, from true states of an emulated processor: ours and
//! StackWalk64's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use object::LittleEndian;
use object::pe::{
    IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR, IMAGE_DIRECTORY_ENTRY_EXCEPTION, IMAGE_FILE_MACHINE_AMD64,
};
use object::read::pe::{ImageNtHeaders as _, PeFile64};
use stk_base::map::MappedFile;
use stk_tests::microsoft::{
    ImageBytes, Memory, Request, VERSIONS, Walked, ask, files_below, version_of_wines_dbghelp,
};
use stk_tests::oracle::{self, Image, Known, Record, States, Truth, piece};
use stk_tests::wine::{self, Folder};
use stk_unwind::Registers;
use stk_unwind::x64::X64Registers;

/// Agreement on the states of an image.
#[derive(Default, Debug)]
struct Agreement {
    states: usize,
    /// Where emulator and dbghelp agree.
    agreed: usize,
    /// Where these two agree, and we too.
    ours: usize,
    /// Where dbghelp differs from the emulator, and we do not.
    ours_alone: usize,
    /// dbghelp differs from the emulator, by the record's tags.
    theirs_wrong: BTreeMap<String, usize>,
    /// Where these two agree and we do not.
    wrong: Vec<String>,
}

fn judge(name: &str, image: &Image, states: &States) -> Agreement {
    let registers: Vec<X64Registers> = states
        .records
        .iter()
        .map(|record| match oracle::at(record, image.base) {
            Registers::X64(registers) => registers,
            _ => panic!("{name}: states of x64"),
        })
        .collect();
    let mut memory = Memory::default();
    memory.add(image.base, &ImageBytes::new(&image.tables));
    let most = states.records.iter().map(|record| record.truth.len()).max().unwrap_or(0) as u32 + 1;
    let mut request = Request::default();
    let stacks =
        states.records.iter().zip(&registers).map(|(record, r)| (r, r.gpr[4], record.stack.as_slice()));
    request.memory(&memory).walks(most, Duration::ZERO, stacks);
    let (theirs, _) = ask(&request).walks(states.records.len());
    let ours = oracle::walks(image, None, states).expect("states of this image");

    let mut agreement = Agreement { states: states.records.len(), ..Agreement::default() };
    for ((record, theirs), ours) in states.records.iter().zip(&theirs).zip(&ours) {
        let truth = &record.truth;
        let ours_is_right = ours.callers.iter().map(|(caller, _)| caller).take(truth.len()).eq(truth);
        let theirs_is_right =
            truth.len() < theirs.len() && truth.iter().zip(&theirs[1..]).all(|(t, w)| is(t, w));
        if !theirs_is_right {
            *agreement.theirs_wrong.entry(states.tags(record).join(", ")).or_default() += 1;
            agreement.ours_alone += usize::from(ours_is_right);
            continue;
        }
        agreement.agreed += 1;
        if ours_is_right {
            agreement.ours += 1;
        } else {
            agreement.wrong.push(example(record, &ours.callers));
        }
    }
    println!(
        "{name}: {} states; emulator and dbghelp agree on {}, stk on {} of these; dbghelp differs from the emulator: {:?}",
        agreement.states, agreement.agreed, agreement.ours, agreement.theirs_wrong
    );
    agreement
}

fn is(truth: &Truth, walked: &Walked) -> bool {
    (truth.ip, truth.sp) == (walked.ip, walked.sp) && truth.nonvolatile == walked.nonvolatile
}

fn example(record: &Record, ours: &[(Truth, stk_unwind::Trust)]) -> String {
    format!("{:#x}: {ours:x?}, truth {:x?}", record.rva, record.truth)
}

#[test]
fn loaded_dlls_are_those_of_the_wheel() {
    assert_eq!(ask(&Request::default()).versions(), VERSIONS);
    assert_ne!(version_of_wines_dbghelp(), VERSIONS[0], "Wine has the same version, so it proves nothing");
}

#[test]
fn kept_states_of_x64_are_judged_by_dbghelp() {
    for name in ["x64-winpty-agent.piece", "x64-zmq-chains.piece"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/unwind").join(name);
        let piece = piece::read(&path).expect("a piece");
        let agreement = judge(name, &piece.image, &piece.states);
        assert!(agreement.agreed * 100 >= agreement.states * 95, "{agreement:?}");
        assert!(agreement.wrong.is_empty(), "{:#?}", agreement.wrong);
    }
}

/// A PE file with unwind data.
struct Native {
    path: PathBuf,
    /// Whether it holds managed code, whose functions need a runtime.
    managed: bool,
}

/// The x64 images with unwind data that tests/fetch.sh fetched, each content once.
fn fetched_images() -> Vec<Native> {
    let (mut images, mut met) = (Vec::new(), BTreeSet::new());
    for path in files_below(&[wine::path("STK_FETCH_DIR")]) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if [".exe", ".dll", ".pyd", ".node"].iter().any(|end| name.ends_with(end))
            && let Some(managed) = unwinds(&path)
            && met.insert((name, std::fs::metadata(&path).expect("it is there").len()))
        {
            images.push(Native { path, managed });
        }
    }
    images.sort_by(|a, b| a.path.cmp(&b.path));
    images
}

/// Whether an x64 image with unwind data is managed; `None` for all other files.
fn unwinds(path: &Path) -> Option<bool> {
    let map = MappedFile::open_plain(path).ok()?;
    let pe = PeFile64::parse(&*map).ok()?;
    let has = |entry| pe.data_directory(entry).is_some_and(|directory| directory.address_range().1 != 0);
    let is_x64 = pe.nt_headers().file_header().machine.get(LittleEndian) == IMAGE_FILE_MACHINE_AMD64;
    (is_x64 && has(IMAGE_DIRECTORY_ENTRY_EXCEPTION)).then(|| has(IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR))
}

/// States of an image by the emulator.
fn emulated(image: &Path, seconds: f64) -> States {
    let folder = Folder::new("emulator");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("emulator/x64.py");
    let out = folder.file("states");
    let mut python = Command::new("python3");
    python.arg(script).arg(image).arg(&out).arg(seconds.to_string());
    let ended = wine::output(&mut python);
    assert!(ended.status.success(), "{}: {}", image.display(), String::from_utf8_lossy(&ended.stderr));
    oracle::read(&out).expect("states")
}

/// Of images that hold managed code only the first few run in the short form: most of their
/// functions need a runtime.
#[test]
fn emulated_states_of_every_image_are_judged_by_dbghelp() {
    const MANAGED: usize = 4;
    let seconds = if wine::long() { 5.0 } else { 1.0 };
    let (native, managed): (Vec<_>, Vec<_>) = fetched_images().into_iter().partition(|image| !image.managed);
    let managed = managed.into_iter().take(if wine::long() { usize::MAX } else { MANAGED });
    let queue = Mutex::new(native.into_iter().chain(managed).collect::<Vec<_>>());
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(image) = { queue.lock().expect("no panic").pop() } {
                    let states = emulated(&image.path, seconds);
                    if states.records.is_empty() {
                        continue;
                    }
                    let tables = oracle::load_image(&image.path, Known::Everything, None).expect("an image");
                    let name = image.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let agreement = judge(&name, &tables, &states);
                    found.lock().expect("no panic").push((name, agreement));
                }
            });
        }
    });
    let found = found.into_inner().expect("no panic");
    let sum =
        |count: fn(&Agreement) -> usize| found.iter().map(|(_, agreement)| count(agreement)).sum::<usize>();
    println!(
        "{} images, {} states; emulator and dbghelp agree on {}, stk on {} of these; of the rest stk has {} as the emulator",
        found.len(),
        sum(|a| a.states),
        sum(|a| a.agreed),
        sum(|a| a.ours),
        sum(|a| a.ours_alone)
    );
    assert!(found.len() > 20 && sum(|a| a.agreed) > 5000, "too few");
    let wrong: Vec<_> = found.iter().filter(|(_, agreement)| !agreement.wrong.is_empty()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
