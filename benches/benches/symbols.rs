//! Compares the symbol index with pdb-addr2line and symbolic's symcache on the same PDB and the
//! same addresses, in one thread and one run.
//!
//! ```text
//! cargo bench -p stk-benches --bench symbols [-- PDB…]
//! ```
//!
//! Without arguments a PDB of over 50 MB is generated (clang-19, lld-19), with over 250,000 inline
//! sites. Each measurement runs in a process of its own, so that its peak memory is its own. Times
//! are those that the measuring thread spent on a CPU, best of several rounds. It prints how far
//! the answers agree, stk's figure, the peer's, and the ratio.
//!
//! `STK_BENCH_EXAMPLES=1` also prints answers that differ.
//!
//! For each frame it gets the function's name, file and line as text. stk keeps the text of each
//! distinct name once it has read it, as `Symbolizer` does; pdb-addr2line keeps the files and
//! formatted types that it has read.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use stk_base::map::MappedFile;
use stk_symbols::index::{Hit, RecordKind, SymbolIndex, TextMap};
use stk_symbols::pdb::PdbFile;
use stk_tests::cpu::cpu_time;

const LOOKUPS: usize = 1_000_000;
const FIRST_LOOKUPS: usize = 100_000;
/// Rounds over all lookups, of which the best counts: at least this many, and as many as fit into
/// the time. This reduces the effect of other programs on the machine.
const ROUNDS: u32 = 3;
const ROUNDS_FOR: Duration = Duration::from_secs(2);
/// Lookups whose answers are compared.
const COMPARED: usize = 100_000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [flag, mode, pdb] = arguments.as_slice()
        && flag == "--measure"
    {
        return measure(mode, Path::new(pdb));
    }
    let mut pdbs: Vec<PathBuf> = arguments.iter().map(PathBuf::from).collect();
    if pdbs.is_empty() {
        pdbs.push(generate()?);
    }
    for pdb in &pdbs {
        compare(pdb)?;
    }
    Ok(())
}

/// The measurements of one process.
#[derive(Clone, Copy, Default)]
struct Figures {
    /// Time until the first lookup is possible.
    load: Duration,
    /// Time of the first lookups.
    first: Duration,
    /// Time of all lookups once their data has been read.
    warm: Duration,
    /// Frames that all lookups returned.
    frames: u64,
    /// Bytes.
    peak: u64,
}

fn compare(pdb: &Path) -> Result<()> {
    println!("\n{} ({:.1} MB)", pdb.display(), std::fs::metadata(pdb)?.len() as f64 / 1e6);
    for peer in ["pdb-addr2line", "symcache"] {
        match run_self(&format!("compare-{peer}"), pdb) {
            Ok(text) => print!("answers beside {peer}: {text}"),
            Err(error) => println!("answers beside {peer}: failed: {error:#}"),
        }
    }
    let ours = child("stk", pdb)?;
    let opened = child("stk-open", pdb)?;
    let single = child("stk-single", pdb)?;
    println!(
        "index built in {:.0} ms, opened in {:.0} µs, peak {:.0} MB",
        ms(ours.load),
        opened.load.as_secs_f64() * 1e6,
        mb(ours.peak)
    );
    println!(
        "{:<16}{:>12}{:>14}{:>14}{:>12}{:>12}",
        "", "load ms", "+100k ms", "M lookups/s", "frames", "peak MB"
    );
    let row = |name: &str, figures: &Figures| {
        println!(
            "{name:<16}{:>12.1}{:>14.1}{:>14.2}{:>12}{:>12.0}",
            ms(figures.load),
            ms(figures.load + figures.first),
            rate(figures),
            figures.frames,
            mb(figures.peak)
        );
    };
    row("stk", &ours);
    row("stk, opened", &opened);
    row("stk, one by one", &single);
    for peer in ["pdb-addr2line", "symcache"] {
        match child(peer, pdb) {
            Ok(figures) => {
                row(peer, &figures);
                println!(
                    "  ratio to {peer}: {:.1} x its rate ({:.1} x one by one); build {:.2} x its load and first lookups; peak {:.2} x its own",
                    rate(&opened) / rate(&figures),
                    rate(&single) / rate(&figures),
                    ours.load.as_secs_f64() / (figures.load + figures.first).as_secs_f64(),
                    ours.peak as f64 / figures.peak as f64
                );
            }
            Err(error) => println!("{peer:<16} failed: {error:#}"),
        }
    }
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn rate(figures: &Figures) -> f64 {
    LOOKUPS as f64 / figures.warm.as_secs_f64() / 1e6
}

/// Runs one measurement in a process of its own.
fn child(mode: &str, pdb: &Path) -> Result<Figures> {
    let text = run_self(mode, pdb)?;
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [load, first, warm, frames, peak] = numbers[..] else { bail!("unexpected output: {text}") };
    let time = Duration::from_nanos;
    Ok(Figures { load: time(load), first: time(first), warm: time(warm), frames, peak })
}

/// Runs this program in another mode and returns its output.
fn run_self(mode: &str, pdb: &Path) -> Result<String> {
    let out = Command::new(std::env::current_exe()?).args(["--measure", mode]).arg(pdb).output()?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(String::from_utf8(out.stdout)?)
}

fn measure(mode: &str, pdb: &Path) -> Result<()> {
    let rvas = addresses(pdb)?;
    let figures = match mode {
        "addresses" => return Ok(()),
        "compare-pdb-addr2line" => return compare_pdb_addr2line(pdb, &rvas[..COMPARED]),
        "compare-symcache" => return compare_symcache(pdb, &rvas[..COMPARED]),
        "stk" => stk_build(pdb, &rvas)?,
        "stk-open" => stk_open(pdb, &rvas, stk_lookups)?,
        "stk-single" => stk_open(pdb, &rvas, stk_single_lookups)?,
        "pdb-addr2line" => pdb_addr2line(pdb, &rvas)?,
        "symcache" => symcache(pdb, &rvas)?,
        _ => bail!("no such measurement: {mode}"),
    };
    let nanos = |time: Duration| time.as_nanos();
    println!(
        "{} {} {} {} {}",
        nanos(figures.load),
        nanos(figures.first),
        nanos(figures.warm),
        figures.frames,
        peak()?
    );
    Ok(())
}

/// Addresses all over the procedures, in random order. A separate process writes them once, so that
/// finding them adds neither time nor memory to the measurements.
fn addresses(pdb: &Path) -> Result<Vec<u32>> {
    let path = work_folder()?.join(format!("{:016x}.rvas", fingerprint(pdb)?));
    if !path.exists() {
        if std::env::args().any(|argument| argument == "addresses") {
            let file = MappedFile::open(pdb)?;
            let index = PdbFile::open(&file)?.index()?;
            let ranges: Vec<(u32, u32)> = index
                .ranges()
                .filter(|range| range.kind == RecordKind::Procedure)
                .map(|r| (r.start, r.end))
                .collect();
            ensure!(!ranges.is_empty(), "no procedures");
            let mut state = 0x9e37_79b9_7f4a_7c15u64;
            let mut random = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            let bytes: Vec<u8> = (0..LOOKUPS)
                .flat_map(|_| {
                    let (start, end) = ranges[(random() % ranges.len() as u64) as usize];
                    (start + (random() % u64::from(end - start)) as u32).to_le_bytes()
                })
                .collect();
            std::fs::write(&path, bytes)?;
        } else {
            let status =
                Command::new(std::env::current_exe()?).args(["--measure", "addresses"]).arg(pdb).status()?;
            ensure!(status.success(), "no addresses");
        }
    }
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(bytes.chunks_exact(4).map(|rva| u32::from_le_bytes(rva.try_into().unwrap_or_default())).collect())
}

fn fingerprint(pdb: &Path) -> Result<u64> {
    Ok(PdbFile::open(&MappedFile::open(pdb)?)?.fingerprint())
}

/// Looks up all addresses at once, as `Symbolizer` does.
fn stk_lookups<'i>(index: &'i SymbolIndex, texts: &mut TextMap<&'i str>, rvas: &[u32]) -> Result<u64> {
    let mut frames = 0;
    index.lookup_all(rvas, |_, hit| frames += hit.map_or(0, |hit| stk_frames(index, texts, hit)))?;
    Ok(frames)
}

/// Looks up one address after the other.
fn stk_single_lookups<'i>(index: &'i SymbolIndex, texts: &mut TextMap<&'i str>, rvas: &[u32]) -> Result<u64> {
    let mut frames = 0;
    for &rva in rvas {
        frames += index.lookup(rva)?.map_or(0, |hit| stk_frames(index, texts, hit));
    }
    Ok(frames)
}

#[inline]
fn stk_frames<'i>(index: &'i SymbolIndex, texts: &mut TextMap<&'i str>, hit: Hit<'i>) -> u64 {
    let mut frames = 0;
    for frame in hit.raw_frames() {
        let mut text = |id| texts.get_or_insert_with(id, || index.text(id).unwrap_or_default());
        black_box((text(frame.name).len(), frame.file.map(|file| text(file).len()), frame.line));
        frames += 1;
    }
    frames
}

fn stk_build(pdb: &Path, rvas: &[u32]) -> Result<Figures> {
    let begun = cpu_time();
    let file = MappedFile::open(pdb)?;
    let index = PdbFile::open(&file)?.index_letting_go(|| file.release(0..file.len()))?;
    let load = cpu_time() - begun;
    std::fs::write(index_path(pdb)?, index.as_bytes())?;
    let mut texts = TextMap::new(&index);
    timed(load, rvas, |rvas| stk_lookups(&index, &mut texts, rvas))
}

/// A lookup method.
type Lookups = for<'i> fn(&'i SymbolIndex, &mut TextMap<&'i str>, &[u32]) -> Result<u64>;

fn stk_open(pdb: &Path, rvas: &[u32], lookups: Lookups) -> Result<Figures> {
    let path = index_path(pdb)?;
    let begun = cpu_time();
    let index = SymbolIndex::open(MappedFile::open(&path)?)?;
    let load = cpu_time() - begun;
    let mut texts = TextMap::new(&index);
    timed(load, rvas, |rvas| lookups(&index, &mut texts, rvas))
}

fn index_path(pdb: &Path) -> Result<PathBuf> {
    Ok(work_folder()?.join(format!("{:016x}.stksym", fingerprint(pdb)?)))
}

fn pdb_addr2line(pdb: &Path, rvas: &[u32]) -> Result<Figures> {
    use pdb_addr2line::pdb::PDB;
    let begun = cpu_time();
    let file = std::fs::File::open(pdb)?;
    let data = pdb_addr2line::ContextPdbData::try_from_pdb(PDB::open(file)?)?;
    let context = data.make_context()?;
    let load = cpu_time() - begun;
    timed(load, rvas, |rvas| {
        let mut frames = 0;
        for &rva in rvas {
            if let Some(found) = context.find_frames(rva)? {
                for frame in &found.frames {
                    black_box((
                        frame.function.as_ref().map(String::len),
                        frame.file.as_deref().map(str::len),
                        frame.line,
                    ));
                    frames += 1;
                }
            }
        }
        Ok(frames)
    })
}

fn symcache(pdb: &Path, rvas: &[u32]) -> Result<Figures> {
    use symbolic_debuginfo::Object;
    use symbolic_symcache::{SymCache, SymCacheConverter};
    let begun = cpu_time();
    let file = MappedFile::open(pdb)?;
    let object = Object::parse(&file)?;
    let mut converter = SymCacheConverter::new();
    converter.process_object(&object)?;
    let mut bytes = Vec::new();
    converter.serialize(&mut bytes)?;
    let cache = SymCache::parse(&bytes)?;
    let load = cpu_time() - begun;
    timed(load, rvas, |rvas| {
        let mut frames = 0;
        for &rva in rvas {
            for location in cache.lookup(u64::from(rva)) {
                black_box((
                    location.function().name().len(),
                    location.file().map(|file| file.full_path().len()),
                    location.line(),
                ));
                frames += 1;
            }
        }
        Ok(frames)
    })
}

fn timed(load: Duration, rvas: &[u32], mut lookups: impl FnMut(&[u32]) -> Result<u64>) -> Result<Figures> {
    let begun = cpu_time();
    lookups(&rvas[..FIRST_LOOKUPS.min(rvas.len())])?;
    let first = cpu_time() - begun;
    // Look up all once, to fill the caches.
    let frames = lookups(rvas)?;
    let mut warm = Duration::MAX;
    let (mut rounds, mut spent) = (0, Duration::ZERO);
    while rounds < ROUNDS || spent < ROUNDS_FOR {
        let begun = cpu_time();
        ensure!(lookups(rvas)? == frames, "the answers change");
        let round = cpu_time() - begun;
        (rounds, spent) = (rounds + 1, spent + round);
        warm = warm.min(round);
    }
    Ok(Figures { load, first, warm, frames, peak: 0 })
}

/// How far a peer's answers agree with stk's, address by address. `stk symbols check --records`
/// finds which one is right, from the raw records.
#[derive(Default)]
struct Compared {
    addresses: u64,
    /// Another number of frames.
    chains: u64,
    /// As many frames, another function on some level.
    names: u64,
    /// The same functions; the peer states a line where stk states none.
    added_lines: u64,
    /// The same functions; another file or line on some level.
    lines: u64,
    /// The first of each kind.
    examples: Vec<String>,
}

impl Compared {
    /// `theirs`: name, file, line. `same_name` decides whether the peer's name is another spelling
    /// of stk's.
    fn add(
        &mut self,
        rva: u32,
        ours: &[stk_symbols::index::Frame<'_>],
        theirs: &[(String, String, u32)],
        same_name: impl Fn(&str, &str) -> bool,
    ) {
        self.addresses += 1;
        let pairs = || ours.iter().zip(theirs);
        let same_line = |our: &stk_symbols::index::Frame<'_>, their: &(String, String, u32)| {
            our.line.unwrap_or(0) == their.2 && (our.line.is_none() || our.file.unwrap_or("") == their.1)
        };
        let (counter, kind) = if ours.len() != theirs.len() {
            (&mut self.chains, "frames")
        } else if !pairs().all(|(our, their)| same_name(our.name, &their.0)) {
            (&mut self.names, "names")
        } else if pairs().all(|(our, their)| same_line(our, their)) {
            return;
        } else if pairs().all(|(our, their)| our.line.is_none() || same_line(our, their)) {
            (&mut self.added_lines, "added line")
        } else {
            (&mut self.lines, "lines")
        };
        *counter += 1;
        if *counter <= 2 {
            self.examples.push(format!("  {kind} at {rva:#x}: {ours:?} and {theirs:?}"));
        }
    }

    fn print(&self) {
        let share = |count: u64| 100.0 * count as f64 / self.addresses.max(1) as f64;
        let other = self.chains + self.names + self.added_lines + self.lines;
        println!(
            "{} addresses: the same {:.2} %, a line of theirs where ours has none {:.2} %, another line {:.2} %, \
             another name {:.2} %, another number of frames {:.2} %",
            self.addresses,
            share(self.addresses - other),
            share(self.added_lines),
            share(self.lines),
            share(self.names),
            share(self.chains)
        );
        if std::env::var_os("STK_BENCH_EXAMPLES").is_some() {
            self.examples.iter().for_each(|example| println!("{example}"));
        }
    }
}

/// pdb-addr2line writes parameters after names, and before them scopes that the records have only
/// as types.
fn compare_pdb_addr2line(pdb: &Path, rvas: &[u32]) -> Result<()> {
    use pdb_addr2line::pdb::PDB;
    let file = MappedFile::open(pdb)?;
    let index = PdbFile::open(&file)?.index()?;
    let data = pdb_addr2line::ContextPdbData::try_from_pdb(PDB::open(std::fs::File::open(pdb)?)?)?;
    let context = data.make_context()?;
    let mut compared = Compared::default();
    for &rva in rvas {
        let ours: Vec<_> = index.lookup(rva)?.iter().flat_map(|hit| hit.frames()).collect();
        let theirs: Vec<(String, String, u32)> = context
            .find_frames(rva)?
            .map(|found| found.frames)
            .unwrap_or_default()
            .into_iter()
            .map(|frame| {
                let file = frame.file.unwrap_or_default().into_owned();
                (frame.function.unwrap_or_default(), file, frame.line.unwrap_or(0))
            })
            .collect();
        compared.add(rva, &ours, &theirs, |our, their| their.contains(our));
    }
    compared.print();
    Ok(())
}

fn compare_symcache(pdb: &Path, rvas: &[u32]) -> Result<()> {
    use symbolic_debuginfo::Object;
    use symbolic_symcache::{SymCache, SymCacheConverter};
    let file = MappedFile::open(pdb)?;
    let index = PdbFile::open(&file)?.index()?;
    let mut converter = SymCacheConverter::new();
    converter.process_object(&Object::parse(&file)?)?;
    let mut bytes = Vec::new();
    converter.serialize(&mut bytes)?;
    let cache = SymCache::parse(&bytes)?;
    let mut compared = Compared::default();
    for &rva in rvas {
        let ours: Vec<_> = index.lookup(rva)?.iter().flat_map(|hit| hit.frames()).collect();
        let theirs: Vec<(String, String, u32)> = cache
            .lookup(u64::from(rva))
            .map(|location| {
                let file = location.file().map(|file| file.full_path()).unwrap_or_default();
                (location.function().name().to_owned(), file, location.line())
            })
            .collect();
        compared.add(rva, &ours, &theirs, |our, their| their.contains(our));
    }
    compared.print();
    Ok(())
}

/// The process's largest resident set, in bytes.
fn peak() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("peak memory is read from /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
}

fn work_folder() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("symbols");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Files of the generated program.
const FILES: u32 = 12;
/// Functions of each file.
const FUNCTIONS: u32 = 1000;

/// Makes a PDB of a program that consists of templates and inlining, if it does not exist yet.
fn generate() -> Result<PathBuf> {
    let folder = work_folder()?.join("generated");
    let pdb = folder.join("big.pdb");
    if pdb.exists() {
        return Ok(pdb);
    }
    std::fs::create_dir_all(&folder)?;
    let mut objects = Vec::new();
    for file in 0..FILES {
        let source = folder.join(format!("unit_{file}.cpp"));
        let object = folder.join(format!("unit_{file}.obj"));
        std::fs::write(&source, unit(file))?;
        run(Command::new("clang-19")
            .args(["--target=x86_64-pc-windows-msvc", "-O2", "-g", "-gcodeview", "-fno-exceptions", "-c"])
            .arg(&source)
            .arg("-o")
            .arg(&object))?;
        objects.push(object);
    }
    let out = folder.join("big.exe");
    run(Command::new("lld-link-19")
        .args(["/debug", "/entry:start", "/nodefaultlib", "/subsystem:console", "/opt:noref,noicf"])
        .arg(format!("/out:{}", out.display()))
        .arg(format!("/pdb:{}", pdb.display()))
        .args(&objects))?;
    Ok(pdb)
}

fn run(command: &mut Command) -> Result<()> {
    let out = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// One C++ file: functions that each inline a chain of templates.
fn unit(number: u32) -> String {
    use std::fmt::Write as _;
    let mut text = format!(
        "#define IN inline __attribute__((always_inline))\n\
         namespace library_of_generated_templates {{ namespace unit_{number} {{\n\
         struct Tag {{}};\n\
         template <class T> struct Numbers {{\n\
         \x20 static IN T turn(T x, int by) {{ return (x << by) ^ (x >> (63 - by)); }}\n\
         \x20 static IN T clamp(T x, T low) {{\n    if (x < low)\n      return low;\n    return x;\n  }}\n\
         }};\n\
         template <class Owner, int Salt, int Depth> struct Chain {{\n\
         \x20 template <class T> static IN T mix(T x, const T *from) {{\n\
         \x20   T y = Numbers<T>::turn(x, Depth + 1) + from[Depth];\n\
         \x20   return Numbers<T>::clamp(y * (Salt + 3), from[Depth + 1]);\n  }}\n\
         \x20 template <class T> static IN T run(T x, const T *from) {{\n\
         \x20   T y = mix(x, from);\n\
         \x20   return Chain<Owner, Salt, Depth - 1>::run(y + Depth, from + 1);\n  }}\n\
         }};\n\
         template <class Owner, int Salt> struct Chain<Owner, Salt, 0> {{\n\
         \x20 template <class T> static IN T run(T x, const T *from) {{ return x + from[0]; }}\n\
         }};\n\
         template <class Owner, int Salt> __attribute__((noinline)) long long work(long long x, const long long *from) {{\n\
         \x20 return Chain<Owner, Salt, 7>::run(x, from);\n\
         }}\n\
         }} }}\n\
         extern \"C\" {{\nvoid *table_{number}[] = {{\n"
    );
    for function in 0..FUNCTIONS {
        let _ = writeln!(
            text,
            "  (void *)&library_of_generated_templates::unit_{number}::work<library_of_generated_templates::unit_{number}::Tag, {function}>,"
        );
    }
    text.push_str("};\n");
    if number == 0 {
        text.push_str("int start() { return (int)(long long)table_0; }\n");
    }
    text.push_str("}\n");
    text
}
