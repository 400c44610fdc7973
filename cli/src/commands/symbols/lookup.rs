//! `stk symbols lookup` and `check`: one image, one PDB.

use super::super::values::{choice, default_name};
use super::super::{Exit, Out, Progress, Usage, guarded, print_error};
use super::SymbolOptions;
use anyhow::Context;
use serde_json::json;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use stk_base::map::MappedFile;
use stk_base::model::file_name;
use stk_output::addresses::{NamedAddress, agreement_text, json_line, text};
use stk_profile::image::open_image;
use stk_profile::stack::{ImageName, image_name};
use stk_schema::Arch;
use stk_schema::identity::CodeView;
use stk_schema::text::printable;
use stk_symbols::pdb::PdbFile;
use stk_symbols::pdb_records::{Agreement, PdbRecords};
use stk_symbols::{Demangle, Identity, ImageFile, ModuleKey, ModuleSymbols, Symbolizer};

/// Names addresses, looked up as given (of a caller's frame, give the return address − 1).
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk symbols lookup app.exe 1a2b0 -y C:\\build
  stk symbols lookup app.pdb - --json < rvas.txt

JSON lines: {\"rva\":\"0x…\",\"frames\":[{\"function\":…,\"file\":…,\"line\":…,\"inline\":bool,\"raw\":\"the record's own name\"}],
\"source\":\"pdb|dwarf|export|none\",\"reason\":…}, innermost frame first; \"aliases\" names functions that were folded into the outermost")]
pub(super) struct LookupArgs {
    /// An image, whose PDB is looked for, or a PDB
    #[arg(value_name = "IMAGE_OR_PDB")]
    file: PathBuf,
    /// RVAs in hexadecimal; `-` reads them from standard input, one a line
    #[arg(value_name = "RVA", required = true)]
    rvas: Vec<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// How much of a mangled name to show
    #[arg(long, value_parser = choice::<Demangle>(), default_value = default_name::<Demangle>(), value_name = "STYLE")]
    demangle: Demangle,
    #[command(flatten)]
    symbols: SymbolOptions,
}

/// Compares the CodeView record of an image with the identity of a PDB. Exit code 1 if they do not
/// belong together.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk symbols check app.exe app.pdb
  stk symbols check app.exe app.pdb --json
  stk symbols check --records app.pdb

--records looks every address of a PDB's code up in stk's index of it, and compares names, inline chains, lines and
folded names with what the PDB's records say, read by another reader (the crate `pdb`). Exit code 1 if any disagrees")]
pub(super) struct CheckArgs {
    /// The image
    #[arg(required_unless_present = "records")]
    image: Option<PathBuf>,
    /// The PDB
    #[arg(required_unless_present = "records")]
    pdb: Option<PathBuf>,
    /// Compare stk's index of PDBs with their records at every address, instead
    #[arg(long, value_name = "PDB", num_args = 1.., conflicts_with_all = ["image", "pdb"])]
    records: Vec<PathBuf>,
    /// Print JSON: {"match": bool, "image": …, "wants": identity or null, "wants_name": …, "pdb":
    /// …, "has": identity}; with --records one line a PDB: {"file": …, "agreement":
    /// {"rvas": …, "wrong_names": …, …, "examples": […]}}
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
///
/// That a file cannot be read, or that standard output cannot be written.
pub(super) fn check(args: &CheckArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    match (&args.image, &args.pdb) {
        (Some(image), Some(pdb)) => check_identity(image, pdb, args.json, out),
        _ => check_records(&args.records, args.json, out),
    }
}

fn check_records(files: &[PathBuf], json: bool, out: Out<'_>) -> anyhow::Result<Exit> {
    let mut exit = Exit::Ok;
    for file in files {
        match guarded(file, || agreement(file)) {
            Ok(agreement) => {
                if !agreement.complete() {
                    exit = Exit::Failure;
                }
                let line = json!({ "file": file.display().to_string(), "agreement": agreement });
                out(&if json { format!("{line}\n") } else { agreement_text(file, &agreement) })?;
            }
            Err(error) => {
                exit = Exit::Failure;
                print_error(&error);
            }
        }
    }
    Ok(exit)
}

fn agreement(path: &Path) -> anyhow::Result<Agreement> {
    let shown = || path.display().to_string();
    let file = open(path)?;
    let index = PdbFile::open(&file).and_then(|pdb| pdb.index()).with_context(shown)?;
    let records = PdbRecords::read(path).with_context(shown)?;
    let progress = Progress::new("addresses");
    progress.add_total(records.code().iter().map(|(from, to)| u64::from(to - from)).sum());
    records.compare(&index, progress.done()).with_context(shown)
}

fn check_identity(image: &Path, pdb: &Path, json: bool, out: Out<'_>) -> anyhow::Result<Exit> {
    let (image_name, pdb_name) = (image.display(), pdb.display());
    let image = open(image)?;
    let image = ImageFile::parse(&image).map_err(|error| anyhow::anyhow!("{image_name}: {error}"))?;
    let file = open(pdb)?;
    let found = *PdbFile::open(&file).with_context(|| pdb_name.to_string())?.identity();
    let has = Identity::Pdb { guid: found.guid, age: found.age };
    let wants = image.code_view.as_ref().map(|&(guid, age, _)| Identity::Pdb { guid, age });
    let name = image.code_view.as_ref().map(|(_, _, name)| String::from_utf8_lossy(name).into_owned());
    let matches = image.code_view.as_ref().is_some_and(|(guid, age, _)| found.matches(guid, *age));
    let text = if json {
        let line = json!({
            "match": matches, "image": image_name.to_string(), "wants": wants.map(|id| id.to_string()),
            "wants_name": name, "pdb": pdb_name.to_string(), "has": has.to_string(),
        });
        format!("{line}\n")
    } else {
        let line = match wants.zip(name) {
            None => format!("{image_name} names no PDB (it has no CodeView record)"),
            Some((wants, _)) if matches => format!("{pdb_name} belongs to {image_name} ({wants})"),
            Some((wants, name)) => {
                format!("{pdb_name} ({has}) does not belong to {image_name}, which wants {name} ({wants})")
            }
        };
        format!("{}\n", printable(&line))
    };
    out(&text)?;
    Ok(if matches { Exit::Ok } else { Exit::Failure })
}

pub(super) fn lookup(args: &LookupArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let rvas = read_rvas(&args.rvas)?;
    let file = open(&args.file)?;
    let symbolizer = Symbolizer::new(args.symbols.store([args.file.as_path()]), args.demangle);
    let resolved = resolve(&symbolizer, &args.file, &file, &rvas)?;
    super::super::note_redirects(symbolizer.store());
    // A PDB is not an image and has no exports.
    let image = open_image(&args.file).ok();
    let module = file_name(args.file.to_str().unwrap_or_default());
    let mut lines = String::new();
    for (n, &rva) in rvas.iter().enumerate() {
        if let Some(found) = resolved.get(n) {
            let name = image_name(Some(found), image.as_ref(), rva, args.demangle);
            let is_named = matches!(name, ImageName::Symbols(_));
            let reason = found.why_not().filter(|_| !is_named);
            let named = NamedAddress { rva, module, name, reason };
            if args.json { json_line(&named, &mut lines) } else { text(&named, &mut lines) }
        }
        if lines.len() > 1 << 20 {
            out(&lines)?;
            lines.clear();
        }
    }
    out(&lines)?;
    Ok(Exit::Ok)
}

fn resolve(
    symbolizer: &Symbolizer,
    path: &Path,
    file: &MappedFile,
    rvas: &[u32],
) -> anyhow::Result<ModuleSymbols> {
    let shown = path.display().to_string();
    if file.starts_with(b"MZ") {
        let image = ImageFile::parse(file).map_err(|error| anyhow::anyhow!("{shown}: {error}"))?;
        let code_view = image.code_view.as_ref();
        let module = ModuleKey {
            path: &shown,
            code_view: code_view.map(|(guid, age, name)| CodeView { guid: *guid, age: *age, pdb_name: name }),
            time_date_stamp: image.time_date_stamp,
            size_of_image: image.size_of_image,
            arch: image.arch.unwrap_or(Arch::X64),
        };
        return Ok(symbolizer.resolve(&module, rvas));
    }
    let identity = *PdbFile::open(file).with_context(|| shown.clone())?.identity();
    let module = ModuleKey {
        path: &shown,
        code_view: None,
        time_date_stamp: 0,
        size_of_image: 0,
        arch: if identity.is_x86() { Arch::X86 } else { Arch::X64 },
    };
    let index = symbolizer.pdb_index(path, file, true).map_err(|reason| anyhow::anyhow!("{reason}"))?;
    if let Ok(resolved) = symbolizer.resolve_in(&module, rvas, path, &index) {
        return Ok(resolved);
    }
    // A part of the cached index is damaged.
    let index = symbolizer.pdb_index(path, file, false).map_err(|reason| anyhow::anyhow!("{reason}"))?;
    symbolizer.resolve_in(&module, rvas, path, &index).with_context(|| shown.clone())
}

fn read_rvas(arguments: &[String]) -> anyhow::Result<Vec<u32>> {
    let mut rvas = Vec::new();
    let mut parse = |text: &str| -> anyhow::Result<()> {
        let text = text.trim();
        let digits = text.strip_prefix("0x").or(text.strip_prefix("0X")).unwrap_or(text);
        if digits.is_empty() {
            return Ok(());
        }
        let rva = u32::from_str_radix(digits, 16)
            .map_err(|_| Usage(format!("{text:?} is no RVA: give up to 8 hexadecimal digits")))?;
        rvas.push(rva);
        Ok(())
    };
    for argument in arguments {
        if argument == "-" {
            // A line has one address, so a longer line is not read to its end.
            let mut input = std::io::stdin().lock();
            let mut line = String::new();
            while input.by_ref().take(64).read_line(&mut line).context("standard input")? != 0 {
                parse(&line)?;
                line.clear();
            }
        } else {
            parse(argument)?;
        }
    }
    Ok(rvas)
}

fn open(path: &Path) -> anyhow::Result<MappedFile> {
    MappedFile::open(path).with_context(|| path.display().to_string())
}
