//! `stk redact`: what is gone, what stays, and that stacks are walked as before.

use crate::support::{kept, kept_text, ran_in};
use std::path::{Path, PathBuf};
use stk::commands::{Exit, answer};
use stk_format::{BlockKind, RawSample, Scratch, Trace};
use stk_schema::event::{
    Blob, CheckWalk, Event, ImageTable, Mark, Memory, Metadata, MethodName, ModuleTables, Nettrace, RunState,
    RuntimeInfo, TableKind, kind,
};
use stk_schema::identity::{CodeView, Identity};
use stk_schema::registers::RegisterSet;
use stk_schema::{Arch, Ticks};
use stk_tests::synth::{Parts, StoredEvent, TraceBuilder};

const BASE: u64 = 0x7f_0000;
const IMAGE: u64 = 0x40_0000;

/// A text as Windows and .NET store it.
fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn run(arguments: &[&str]) -> (String, Exit) {
    answer(arguments.iter().map(Into::into)).unwrap()
}

/// Redacts a trace; gives the copy's path.
fn redacted(folder: &Path, trace: &str, more: &[&str]) -> (String, Exit) {
    let copy = folder.join("copy.stk").to_str().unwrap().to_owned();
    let (_, exit) = run(&[&["redact", trace, "-o", &copy, "--force"], more].concat());
    (copy, exit)
}

/// All event bytes of a trace.
fn events(file: &[u8]) -> Vec<u8> {
    events_of(file, &|_| true)
}

/// The event bytes of its blocks of some kinds.
fn events_of(file: &[u8], wanted: &dyn Fn(BlockKind) -> bool) -> Vec<u8> {
    let trace = Trace::open(file).unwrap();
    let mut scratch = Scratch::new();
    let blocks = trace.blocks().iter().filter(|block| wanted(block.header.kind));
    blocks.flat_map(|block| trace.payload(block, &mut scratch).unwrap().to_vec()).collect()
}

fn holds(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

#[track_caller]
fn stacks_are_the_same(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let trace = kept_text(name);
    let (copy, exit) = redacted(folder.path(), &trace, &[]);
    assert_eq!(exit, Exit::Ok);
    // Each stack of each sample with its time, its end and the trust in its frames.
    let reported = |trace: &str, format: &str| {
        let output = folder.path().join("output").to_str().unwrap().to_owned();
        let to = ["convert", trace, "--to", format, "-o", &output, "--force", "--no-default-symbols"];
        assert_eq!(run(&to).1, Exit::Ok);
        let text = std::fs::read_to_string(&output).unwrap();
        let digest = text.find("xxh3-128 ").map_or("-", |at| &text[at + 9..at + 41]).to_owned();
        let len = std::fs::metadata(trace).unwrap().len();
        text.replace(&digest, "DIGEST")
            .replace(&format!("trace of {len} bytes"), "LEN")
            .replace("copy.stk", name)
    };
    for format in ["folded", "speedscope", "chrome"] {
        let (before, after) = (reported(&trace, format), reported(&copy, format));
        assert!(before.len() > 1000 && before == after, "{format}");
    }
    let problems = |trace: &str| {
        let (text, _) = run(&["stats", "--json", "--no-default-symbols", trace]);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["traces"][0]["stacks"].clone()
    };
    assert_eq!(problems(&trace), problems(&copy));
    assert!(std::fs::metadata(&copy).unwrap().len() < std::fs::metadata(&trace).unwrap().len());
}

#[test]
fn stacks_of_native_code_are_walked_as_before() {
    stacks_are_the_same("busy.stk");
}

#[test]
fn stacks_of_native_and_managed_code_are_walked_as_before() {
    stacks_are_the_same("mixed.stk");
}

/// A secret in every form that a local can have, as bytes of whole words of 8 bytes.
fn secrets() -> Vec<(&'static str, Vec<u8>)> {
    let wide: Vec<u8> = "Gänsefüßchen-Passw0rd".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut secrets = vec![
        ("ASCII", b"correct horse battery staple".to_vec()),
        ("UTF-16", wide),
        ("u64", 0x1234_5678_9abc_def0u64.to_le_bytes().to_vec()),
        ("u32", 0x5ec0_de01u32.to_le_bytes().to_vec()),
        ("f64", 1234.56789f64.to_le_bytes().to_vec()),
        ("f32", 98.765f32.to_le_bytes().to_vec()),
    ];
    for (_, bytes) in &mut secrets {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    secrets
}

/// A trace of `arch` that keeps each secret on stacks, in registers and in memory beside them; and
/// words that must stay.
fn secret_trace(arch: Arch, stays: &[u64]) -> Vec<u8> {
    let word = if arch == Arch::X86 { 4 } else { 8 };
    let set = RegisterSet::general(arch);
    let mut builder = TraceBuilder::new(arch);
    builder.module(0, IMAGE, 0x1000, r"C:\a.exe", Vec::new());
    let thread = builder.thread(0, 7, "main", BASE);
    let all: Vec<u8> = secrets().into_iter().flat_map(|(_, bytes)| bytes).collect();
    let stays: Vec<u8> = stays.iter().flat_map(|value| value.to_le_bytes()[..word].to_vec()).collect();
    for time in 1..6u64 {
        // Later samples are differences to the ones before.
        let mut stack = [all.clone(), stays.clone(), vec![0; 64]].concat();
        stack.rotate_right(time as usize * 8);
        let words = all.chunks_exact(word).skip(time as usize);
        let values =
            words.map(|bytes| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)));
        let mut registers: Vec<u64> = values.chain(std::iter::repeat(0x77)).take(set.len()).collect();
        let stack_base = if time == 5 { 0 } else { BASE };
        let stack_start = BASE - stack.len() as u64;
        (registers[0], registers[1]) = (IMAGE + 0x10 * time, stack_start);
        builder.raw(&RawSample {
            thread,
            time: Ticks(10 * time),
            set,
            registers: &registers,
            stack_base,
            stack_start,
            stack: &stack,
            code: Some(&[0x90; 16]),
            cpu: None,
            state: RunState::Running,
            tag: (time == 3).then_some(9),
            tables_pending: false,
            context_reply: None,
            extra: if time == 2 { &[(0x5_0003, b"correct horse battery staple")] } else { &[] },
        });
        let bytes = &all;
        builder.push(&Event::Memory(Memory { thread, time: Ticks(10 * time), address: 0x6_0002, bytes }));
    }
    builder.finish()
}

#[test]
fn no_secret_is_left_on_stacks_in_registers_or_in_memory() {
    for arch in [Arch::X64, Arch::Arm64, Arch::X86] {
        // A return address, the end of a chain, a frame pointer.
        let stays = [IMAGE + 0x123, u64::MAX, BASE - 0x20];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.stk").to_str().unwrap().to_owned();
        let before = secret_trace(arch, &stays);
        std::fs::write(&path, &before).unwrap();
        let (copy, exit) = redacted(folder.path(), &path, &[]);
        assert_eq!(exit, Exit::Ok);
        let after = std::fs::read(&copy).unwrap();
        let samples = |file: &[u8]| events_of(file, &|kind| kind == BlockKind::Samples);
        let (raw_before, raw_after) = (samples(&before), samples(&after));
        for (name, secret) in secrets() {
            // No four bytes of any secret in a row, zeros aside.
            for part in secret.windows(4).filter(|part| part.iter().all(|byte| *byte != 0)) {
                assert!(holds(&raw_before, part), "{arch:?} {name}");
                assert!(!holds(&raw_after, part), "{arch:?} {name}: {part:x?}");
            }
        }
        for word in stays {
            let word = &word.to_le_bytes()[..if arch == Arch::X86 { 4 } else { 8 }];
            assert!(holds(&raw_after, word), "{arch:?} {word:x?}");
        }
        let (text, _) = run(&["info", &copy]);
        assert!(text.contains("redacted") && text.contains("no addresses"), "{text}");
        assert_eq!(run(&["verify", &copy]).1, Exit::Ok);
    }
}

#[test]
fn authentication_bits_do_not_hide_an_address_of_arm64() {
    let signed = 0x0042_0000_0000_0000 | IMAGE | 0x123;
    let file = secret_trace(Arch::Arm64, &[signed]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.stk").to_str().unwrap().to_owned();
    std::fs::write(&path, file).unwrap();
    let (copy, _) = redacted(folder.path(), &path, &[]);
    assert!(holds(&events(&std::fs::read(copy).unwrap()), &signed.to_le_bytes()));
}

fn with_texts() -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    let path = r"C:\Users\Ann\app.exe";
    let line = r#""C:\Users\Ann\app.exe" --password hunter2"#;
    for (key, value) in [
        ("command_line", line),
        ("host", "ANNS-PC"),
        ("machine.id", "5f0c1b2a"),
        ("note", r"see C:\Users\Ann\x"),
    ] {
        builder.meta(0, &Event::Metadata(Metadata { key: key.as_bytes(), value: value.as_bytes() }));
    }
    let pdb = CodeView { guid: [7; 16], age: 1, pdb_name: br"C:\Users\Ann\app.pdb" };
    let instance = builder.module(0, IMAGE, 0x1000, path, vec![Identity::CodeView(pdb)]);
    let record = [b"RSDS".as_slice(), &[7; 16], &[1, 0, 0, 0], pdb.pdb_name, b"\0"].concat();
    builder.tables(1, instance, &[(TableKind::Debug, 0x500, &record)]);
    // A list of .NET that holds a path and the command line, each across two pieces.
    let list = [wide("x C:\\Users\\Ann\\a.dll "), wide(line), wide(" end")].concat();
    for (n, bytes) in list.chunks(17).enumerate() {
        let offset = 17 * n as u64;
        builder.meta(2, &Event::Nettrace(Nettrace { session: 1, time: Ticks(2), offset, bytes }));
    }
    let thread = builder.thread(0, 7, "main", BASE);
    builder.sample(thread, 5, &[IMAGE + 0x10, BASE - 16], &[0x1234_5678, IMAGE + 0x20]);
    builder.finish()
}

#[test]
fn texts_are_dropped_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts.stk").to_str().unwrap().to_owned();
    std::fs::write(&path, with_texts()).unwrap();
    let needles =
        [b"hunter2".to_vec(), b"ANNS-PC".to_vec(), b"Ann\\".to_vec(), wide("hunter2"), wide("\\Ann\\")];
    let id = b"5f0c1b2a";
    let left = |drop: &[&str]| {
        let (copy, exit) = redacted(folder.path(), &path, drop);
        assert_eq!(exit, Exit::Ok);
        let bytes = std::fs::read(&copy).unwrap();
        let raw = events(&bytes);
        // Pieces of .NET's lists, put together.
        let trace = Trace::open(&bytes).unwrap();
        let mut list = Vec::new();
        let mut scratch = Scratch::new();
        for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Meta) {
            for event in trace.events(block, &mut scratch).unwrap() {
                if let Event::Nettrace(piece) = event.unwrap() {
                    assert_eq!(piece.offset, list.len() as u64);
                    list.extend_from_slice(piece.bytes);
                }
            }
        }
        let dropped = drop.iter().any(|words| words.contains("host"));
        assert_eq!(holds(&raw, id), !dropped);
        needles.each_ref().map(|needle| holds(&raw, needle) || holds(&list, needle))
    };
    assert_eq!(left(&[]), [true; 5]);
    assert_eq!(left(&["--drop", "host"]), [true, false, true, true, true]);
    // The user's name in the command line of .NET's list goes with it.
    assert_eq!(left(&["--drop", "command-line"]), [false, true, true, false, true]);
    assert_eq!(left(&["--drop", "user"]), [true, true, false, true, false]);
    assert_eq!(left(&["--drop", "command-line,host,user"]), [false; 5]);
}

#[test]
fn a_changed_blob_has_its_new_hash_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts.stk").to_str().unwrap().to_owned();
    std::fs::write(&path, with_texts()).unwrap();
    let (copy, _) = redacted(folder.path(), &path, &["--drop", "user"]);
    let bytes = std::fs::read(&copy).unwrap();
    let trace = Trace::open(&bytes).unwrap();
    let (mut tables, mut blobs) = (Vec::<ImageTable>::new(), Vec::new());
    let mut scratch = Scratch::new();
    for block in trace.blocks().iter().filter(|block| block.header.kind != BlockKind::Samples) {
        for event in trace.events(block, &mut scratch).unwrap() {
            match event.unwrap() {
                Event::ModuleTables(ModuleTables { tables: reported, .. }) => tables.extend(reported),
                Event::Blob(Blob { hash, bytes, .. }) => blobs.push((hash, bytes.to_vec())),
                _ => {}
            }
        }
    }
    let ([table], [(hash, record)]) = (tables.as_slice(), blobs.as_slice()) else { panic!("{tables:?}") };
    assert_eq!((table.hash, table.len as usize), (*hash, record.len()));
    assert_eq!(*hash, stk_format::blob::content_hash(record));
    assert!(record.ends_with(b"C:\\Users\\user\\app.pdb\0"), "{record:x?}");
    assert_eq!(run(&["verify", &copy]).1, Exit::Ok);
}

/// The bytes of the trace's SAMPLES block with this position among them.
fn samples_block(file: &[u8], n: usize) -> std::ops::Range<usize> {
    let trace = Trace::open(file).unwrap();
    let mut blocks = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
    let block = blocks.nth(n).unwrap();
    let start = block.offset as usize + stk_format::BLOCK_HEADER_LEN;
    start..start + block.header.stored_len as usize
}

#[test]
fn a_damaged_block_is_missing_in_the_copy_and_both_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = std::fs::read(kept_text("busy.stk")).unwrap();
    let place = samples_block(&file, 1);
    file[place.start + place.len() / 2] ^= 0x20;
    let path: PathBuf = folder.path().join("damaged.stk");
    std::fs::write(&path, &file).unwrap();
    let (copy, exit) = redacted(folder.path(), path.to_str().unwrap(), &[]);
    assert_eq!(exit, Exit::Damaged);
    let (text, exit) = run(&["verify", &copy]);
    assert_eq!(exit, Exit::Damaged);
    assert!(text.contains("1 block(s) lost"), "{text}");
    // The supplement of a damaged trace is not copied, which redact reports.
    let count = |path: &str| {
        let file = std::fs::read(path).unwrap();
        let trace = Trace::open(&file).unwrap();
        trace.blocks().iter().filter(|block| block.header.flags & stk_format::FLAG_SUPPLEMENT == 0).count()
    };
    assert_eq!(count(&copy) + 1, count(path.to_str().unwrap()));
}

#[test]
fn a_trace_that_was_cut_off_stays_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::read(kept_text("busy.stk")).unwrap();
    let cut = samples_block(&file, 3).start + 10;
    let path = folder.path().join("cut.stk");
    std::fs::write(&path, &file[..cut]).unwrap();
    let (copy, exit) = redacted(folder.path(), path.to_str().unwrap(), &[]);
    assert_eq!(exit, Exit::Ok);
    let copy = std::fs::read(copy).unwrap();
    let (before, after) = (Trace::open(&file[..cut]).unwrap(), Trace::open(&copy).unwrap());
    assert!(!after.is_complete() && !after.is_indexed() && after.damage().is_empty());
    assert_eq!(before.blocks().len(), after.blocks().len());
}

#[test]
fn a_supplement_is_copied_behind_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = with_texts();
    let mut writer = stk_format::SupplementWriter::new(&Trace::open(&file).unwrap()).unwrap();
    let left = Metadata { key: b"supplement.left", value: br"C:\Users\Ann\b.dll: gone" };
    writer.event(BlockKind::Meta, &Event::Metadata(left)).unwrap();
    let addition = writer.finish().unwrap();
    file.truncate(addition.keep as usize);
    file.extend(addition.bytes);
    let path = folder.path().join("texts.stk");
    std::fs::write(&path, &file).unwrap();
    let (copy, exit) = redacted(folder.path(), path.to_str().unwrap(), &["--drop", "user"]);
    assert_eq!(exit, Exit::Ok);
    let copy = std::fs::read(copy).unwrap();
    assert!(matches!(Trace::open(&copy).unwrap().supplement(), stk_format::Supplement::Whole { .. }));
    assert!(holds(&events(&copy), b"C:\\Users\\user\\b.dll: gone"));
}

#[test]
fn a_file_that_is_there_is_replaced_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.stk");
    std::fs::write(&copy, "mine").unwrap();
    let arguments = ["redact", &kept_text("busy.stk"), "-o", copy.to_str().unwrap()];
    let refused = answer(arguments.iter().map(Into::into)).unwrap_err().to_string();
    assert!(refused.contains("--force"), "{refused}");
    assert_eq!(std::fs::read(&copy).unwrap(), b"mine");
}

#[test]
fn of_traces_only_a_redacted_copy_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let redact = |from: &str, to: &str, more: &[&str]| {
        let ran = ran_in(folder.path(), &[&["redact", from, "-o", to], more].concat());
        (ran.code.unwrap(), ran.error)
    };
    let copy = at("copy.stk");
    assert_eq!(redact(&kept_text("busy.stk"), &copy, &[]).0, 0);
    let first = std::fs::read(&copy).unwrap();
    let (code, printed) = redact(&kept_text("mixed.stk"), &copy, &[]);
    assert_eq!(code, 1, "without --force: {printed}");
    assert_eq!(std::fs::read(&copy).unwrap(), first);
    assert_eq!(redact(&kept_text("mixed.stk"), &copy, &["--force"]).0, 0, "a copy");
    assert_ne!(std::fs::read(&copy).unwrap(), first);
    // Its own input, though a copy too.
    let before = std::fs::read(&copy).unwrap();
    assert_eq!(redact(&copy, &copy, &["--force"]).0, 2);
    assert_eq!(std::fs::read(&copy).unwrap(), before);
    // A recording, one that another rule redacted, and one that cannot be read.
    let mut other = TraceBuilder::new(Arch::X64);
    let rule = stk_schema::event::Redaction { rule: b"of a recorder", words: 1 };
    other.events(BlockKind::Meta, 0, [Event::Redaction(rule)]);
    let recording = std::fs::read(kept("busy.stk")).unwrap();
    for (name, bytes) in [
        ("recording.stk", recording.clone()),
        ("other.stk", other.finish()),
        ("cut.stk", recording[..20].to_vec()),
    ] {
        std::fs::write(at(name), &bytes).unwrap();
        let (code, printed) = redact(&kept_text("mixed.stk"), &at(name), &["--force"]);
        assert_eq!(code, 2, "{name}: {printed}");
        assert!(printed.contains("is a trace, which no output replaces"), "{name}: {printed}");
        assert_eq!(std::fs::read(at(name)).unwrap(), bytes);
    }
}

/// What a planted secret must not survive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Until {
    /// Any redaction.
    Any,
    /// `--drop` with this.
    Dropped(&'static str),
}

/// Secrets of 8 bytes each, so that one fills a word, and where they stand.
#[derive(Default)]
struct Planted(Vec<(String, &'static str, Until)>);

impl Planted {
    fn plant(&mut self, place: &'static str, until: Until) -> String {
        let secret = format!("S3C{:02}_Q7", self.0.len());
        self.0.push((secret.clone(), place, until));
        secret
    }

    fn any(&mut self, place: &'static str) -> String {
        self.plant(place, Until::Any)
    }

    fn word(&mut self, place: &'static str) -> u64 {
        u64::from_le_bytes(self.any(place).as_bytes().try_into().unwrap())
    }

    /// A path in the folder of a user of that name.
    fn path(&mut self, place: &'static str) -> String {
        format!(r"C:\Users\{}\x.pdb", self.plant(place, Until::Dropped("user")))
    }
}

/// A trace with a secret in every place that one can be in.
fn planted() -> (Vec<u8>, Planted) {
    let mut all = Planted::default();
    let mut builder = TraceBuilder::new(Arch::X64);
    let fact = |builder: &mut TraceBuilder, key: &str, value: &str| {
        builder.meta(0, &Event::Metadata(Metadata { key: key.as_bytes(), value: value.as_bytes() }));
    };
    let line = format!("x.exe --password {}", all.plant("command line", Until::Dropped("command-line")));
    fact(&mut builder, "command_line", &line);
    let other = all.plant("inject's command line", Until::Dropped("command-line"));
    fact(&mut builder, "inject.command_line", &other);
    let host = all.plant("host", Until::Dropped("host"));
    fact(&mut builder, "host", &host);
    let id = all.plant("machine id", Until::Dropped("host"));
    fact(&mut builder, "machine.id", &id);
    let path = all.path("metadata");
    fact(&mut builder, "env", &path);
    let (path, name) = (all.path("module path"), all.path("name of a PDB"));
    let pdb = CodeView { guid: [7; 16], age: 1, pdb_name: name.as_bytes() };
    let instance = builder.module(0, IMAGE, 0x1000, &path, vec![Identity::CodeView(pdb)]);
    let in_record = all.path("CodeView record");
    let record = [b"RSDS".as_slice(), &[7; 16], &[1, 0, 0, 0], in_record.as_bytes(), b"\0"].concat();
    builder.tables(1, instance, &[(TableKind::Debug, 0x500, &record)]);
    let thread = builder.thread(0, 7, &all.path("thread name"), BASE);
    let (text, method) = (all.path("mark"), all.path("method"));
    builder.meta(2, &Event::Mark(Mark { time: Ticks(2), thread, tag: 0, text: text.as_bytes() }));
    let (time, base, name) = (Ticks(2), IMAGE + 0x100, method.as_bytes());
    builder.meta(2, &Event::MethodName(MethodName { time, base, size: 8, source: 1, name }));
    let (version, note) = (all.path("version of a runtime"), all.path("note on a runtime"));
    builder.meta(
        2,
        &Event::RuntimeInfo(RuntimeInfo {
            module: instance,
            time,
            kind: 1,
            version: version.as_bytes(),
            descriptor: b"",
            pointer_data: &[],
            note: note.as_bytes(),
        }),
    );
    // .NET's lists, in several blocks: the same line, and paths before and behind it.
    for session in [1, 2] {
        let mut list = wide(&format!("a {} ", all.path("list of .NET")));
        list.extend(wide(&line));
        list.extend(wide(&format!(" {} end", all.path("list of .NET, behind"))));
        for (n, bytes) in list.chunks(31).enumerate() {
            let offset = 31 * n as u64;
            builder.meta(2, &Event::Nettrace(Nettrace { session, time: Ticks(2), offset, bytes }));
            builder.cut();
        }
    }
    for time in 3..6u64 {
        let stack: Vec<u8> = (0..4).flat_map(|_| all.word("stack").to_le_bytes()).collect();
        let set = RegisterSet::general(Arch::X64);
        let mut registers: Vec<u64> = (0..set.len()).map(|_| 0).collect();
        registers[3..6].fill_with(|| all.word("register"));
        let stack_start = BASE - stack.len() as u64;
        (registers[0], registers[1]) = (IMAGE + 0x10, stack_start);
        let (extra, odd) = (all.any("memory beside a stack"), all.any("memory at an odd address"));
        builder.raw(&RawSample {
            thread,
            time: Ticks(10 * time),
            set,
            registers: &registers,
            stack_base: BASE,
            stack_start,
            stack: &stack,
            code: None,
            cpu: None,
            state: RunState::Running,
            tag: None,
            tables_pending: false,
            context_reply: None,
            extra: &[(0x5_0000, extra.as_bytes()), (0x5_1003, odd.as_bytes())],
        });
        let bytes = all.any("MEMORY");
        let memory = Memory { thread, time: Ticks(10 * time), address: 0x6_0000, bytes: bytes.as_bytes() };
        builder.push(&Event::Memory(memory));
        let frames = vec![(all.word("frame of the system's walk"), all.word("its stack pointer"))];
        builder.push(&Event::CheckWalk(CheckWalk { thread, time: Ticks(10 * time), flags: 0, frames }));
        builder.cut();
    }
    let mut parts = Parts::take_apart(&builder.finish()).unwrap();
    let boot = all.plant("boot id", Until::Dropped("host"));
    parts.header.boot_id = u64::from_le_bytes(boot.as_bytes().try_into().unwrap());
    let mut tailed = std::collections::BTreeSet::new();
    for block in &mut parts.blocks {
        for event in &mut block.events {
            // The copy of the header, and text that goes to the end of its event.
            if event.kind == kind::METADATA && event.body.windows(10).any(|found| found == b"stk.header") {
                let value = Metadata { key: stk_format::HEADER_KEY, value: &parts.header.encode() };
                *event = StoredEvent::of(&Event::Metadata(value), block.header.first).unwrap();
            } else if tailed.insert(event.kind) && event.kind != kind::SLOT {
                event.body.extend(all.any("tail of an event").into_bytes());
            }
        }
        let body = all.any("event of an unknown type").into_bytes();
        block.events.push(StoredEvent { kind: 0x4001, body });
    }
    let of_vendor = parts.block(BlockKind::Other(0x81), Ticks(70));
    let body = all.any("block of an unknown kind").into_bytes();
    of_vendor.events.push(StoredEvent { kind: 0x4001, body });
    parts.renumber();
    let mut file = parts.to_file();
    file.extend(all.any("bytes behind the blocks").bytes());
    (file, all)
}

/// The secrets of which a file holds something, as text or as UTF-16.
fn survivors<'a>(file: &[u8], all: &'a Planted) -> Vec<&'a (String, &'static str, Until)> {
    let trace = Trace::open(file).unwrap();
    let mut scratch = Scratch::new();
    let mut bytes = file.to_vec();
    for block in trace.blocks().iter() {
        bytes.extend(trace.payload(block, &mut scratch).unwrap_or_default());
    }
    let mut lists: std::collections::BTreeMap<u64, Vec<u8>> = Default::default();
    for block in trace.blocks().iter().filter(|block| block.header.kind != BlockKind::Samples) {
        for event in trace.events(block, &mut scratch).into_iter().flatten().map_while(Result::ok) {
            if let Event::Nettrace(piece) = event {
                lists.entry(piece.session).or_default().extend(piece.bytes);
            }
        }
    }
    bytes.extend(lists.into_values().flatten());
    // Walks of the system's unwinder are stored as differences.
    for block in Parts::take_apart(file).expect("a trace").blocks {
        for event in &block.events {
            if let Ok(Event::CheckWalk(walk)) =
                stk_format::event::decode(event.kind, &event.body, block.header.first)
            {
                bytes
                    .extend(walk.frames.into_iter().flat_map(|(ip, sp)| [ip, sp]).flat_map(u64::to_le_bytes));
            }
        }
    }
    let is_there =
        |(secret, ..): &&(String, _, _)| holds(&bytes, secret.as_bytes()) || holds(&bytes, &wide(secret));
    all.0.iter().filter(is_there).collect()
}

#[test]
fn no_planted_secret_survives_whichever_block_is_damaged() {
    let (file, all) = planted();
    assert!(all.0.len() >= 44, "{} secrets", all.0.len());
    let there: std::collections::BTreeSet<_> = survivors(&file, &all).into_iter().map(|one| &one.0).collect();
    let absent: Vec<_> = all.0.iter().filter(|one| !there.contains(&one.0)).collect();
    assert!(absent.is_empty(), "not in the trace: {absent:?}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("planted.stk").to_str().unwrap().to_owned();
    let of_copy = |file: &[u8], drop: &[&str]| {
        std::fs::write(&path, file).unwrap();
        let copy = folder.path().join("copy.stk");
        let arguments = [&["redact", &path, "-o", copy.to_str().unwrap(), "--force"], drop].concat();
        let Ok((_, exit)) = answer(arguments.iter().map(Into::into)) else { return None };
        let copied = std::fs::read(copy).unwrap();
        Some((exit, survivors(&copied, &all).into_iter().cloned().collect::<Vec<_>>()))
    };
    let (_, left) = of_copy(&file, &[]).unwrap();
    assert!(left.iter().all(|(.., until)| *until != Until::Any), "{left:?}");
    for what in ["user", "host", "command-line"] {
        let (_, left) = of_copy(&file, &["--drop", what]).unwrap();
        assert!(left.iter().all(|(.., until)| *until != Until::Dropped(what)), "{what}: {left:?}");
    }
    let drop = ["--drop", "command-line,host,user"];
    let (exit, left) = of_copy(&file, &drop).unwrap();
    // A block of an unknown kind is left out, which is reported.
    assert_eq!((exit, left), (Exit::Damaged, Vec::new()));
    let trace = Trace::open(&file).unwrap();
    let offsets: Vec<usize> = trace.blocks().iter().map(|block| block.offset as usize).collect();
    assert!(offsets.len() > 20);
    let mut copies = 0;
    for at in offsets {
        for place in [at + 20, at + stk_format::BLOCK_HEADER_LEN + 8] {
            let mut damaged = file.clone();
            damaged[place] ^= 1;
            let Some((exit, left)) = of_copy(&damaged, &drop) else { continue };
            assert_eq!((exit, left), (Exit::Damaged, Vec::new()), "byte {place}");
            copies += 1;
        }
    }
    assert!(copies > 40, "{copies}");
}

#[test]
fn list_behind_a_gap_is_left_out_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gap.stk").to_str().unwrap().to_owned();
    let mut builder = TraceBuilder::new(Arch::X64);
    let list = wide(r"x C:\Users\Ann\a.dll and C:\Users\Bob\b.dll");
    for (n, bytes) in list.chunks(20).enumerate().filter(|(n, _)| *n != 2) {
        let offset = 20 * n as u64;
        builder.meta(2, &Event::Nettrace(Nettrace { session: 1, time: Ticks(2), offset, bytes }));
    }
    let thread = builder.thread(0, 7, "main", BASE);
    builder.sample(thread, 5, &[IMAGE + 0x10, BASE - 16], &[0x1234_5678, IMAGE + 0x20]);
    std::fs::write(&path, builder.finish()).unwrap();
    let (copy, exit) = redacted(folder.path(), &path, &["--drop", "user"]);
    let raw = events(&std::fs::read(&copy).unwrap());
    assert_eq!(exit, Exit::Damaged);
    assert!(!holds(&raw, &wide("Ann")) && !holds(&raw, &wide("Bob")) && holds(&raw, &wide("x C:\\Us")));
    // Without a text to look for, the pieces stay.
    let (copy, exit) = redacted(folder.path(), &path, &[]);
    assert_eq!(exit, Exit::Ok);
    assert!(holds(&events(&std::fs::read(&copy).unwrap()), &wide("Bob")));
    // Nor is the command line known here.
    let (copy, exit) = redacted(folder.path(), &path, &["--drop", "command-line"]);
    assert_eq!(exit, Exit::Damaged);
    assert!(!holds(&events(&std::fs::read(&copy).unwrap()), &wide("x C:")));
}
