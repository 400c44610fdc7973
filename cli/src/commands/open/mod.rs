//! `stk open`: a trace in a viewer, in one step.
//!
//! ```text
//! serve  gives one file to one site, over loopback    file -> HTTP
//! ```

mod serve;

use super::annotate::CodeArgs;
use super::convert::{self, ConvertArgs};
use super::report::{self, ReportArgs};
use super::{Exit, Out, ProfileArgs, Usage, browser, note, print_message};
use anyhow::Context as _;
use serve::Server;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use stk_base::interrupt::private_folder;
use stk_base::text::percent_encoded;
use stk_output::formats::{Format, PerfettoStyle};

/// Shows a trace in a viewer. `report` is a page on this machine, which needs no network. The
/// others are sites: the browser opens the site, which reads one file from stk on this machine;
/// stk sends nothing anywhere.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
`stk app.stk` is short for `stk open app.stk`.

The site gets an address with a random part on 127.0.0.1, which answers that site's pages alone, and
ends after one transfer or two minutes. What the site's script does with the file is up to the site.

Examples:
  stk app.stk
  stk open app.stk -y symbols --from 2s --until 5s
  stk open app.stk --in firefox")]
pub(super) struct OpenArgs {
    /// Traces: files, patterns such as *.stk, or folders. Sites take one
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The viewer
    #[arg(long = "in", value_enum, default_value_t, value_name = "VIEWER")]
    viewer: Viewer,
    /// Start no browser; print the address of what it would show
    #[arg(long)]
    no_browser: bool,
    /// Threads to use [default: as many as there are processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    #[command(flatten)]
    profile: ProfileArgs,
}

/// Where a trace is shown.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Viewer {
    /// stk's own page, on this machine
    #[default]
    Report,
    /// https://profiler.firefox.com
    Firefox,
    /// https://www.speedscope.app
    Speedscope,
    /// https://ui.perfetto.dev
    Perfetto,
}

/// A site that shows profiles.
struct Site {
    format: Format,
    /// What its pages call themselves when they ask for a file (RFC 6454).
    origin: &'static str,
    /// Its address, up to that of the file.
    address: &'static str,
    /// Whether the file's address is escaped there.
    escaped: bool,
    /// The port that the site's own rules let its pages read from; 0: any.
    port: u16,
}

impl Viewer {
    fn site(self) -> Option<Site> {
        match self {
            Viewer::Report => None,
            Viewer::Firefox => Some(Site {
                format: Format::Firefox,
                origin: "https://profiler.firefox.com",
                address: "https://profiler.firefox.com/from-url/",
                escaped: true,
                port: 0,
            }),
            Viewer::Speedscope => Some(Site {
                format: Format::Speedscope,
                origin: "https://www.speedscope.app",
                address: "https://www.speedscope.app/#profileURL=",
                escaped: true,
                port: 0,
            }),
            Viewer::Perfetto => Some(Site {
                format: Format::Perfetto,
                origin: "https://ui.perfetto.dev",
                address: "https://ui.perfetto.dev/#!/?url=",
                escaped: false,
                // Its Content-Security-Policy names this one, for its own `open_trace_in_ui`.
                port: 9001,
            }),
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &OpenArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    match args.viewer.site() {
        None => in_report(args, out),
        Some(site) => in_site(args, &site, out),
    }
}

/// Writes a page in a private folder and shows it. The page stays: nobody knows how long it is
/// read.
fn in_report(args: &OpenArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let folder = private_folder().context("no temporary folder")?;
    let page = folder.at().path().join(file_name(&args.files, "report.html"));
    let exit = report::run(&ReportArgs {
        files: args.files.clone(),
        output: Some(page.clone()),
        open: false,
        force: false,
        jobs: args.jobs,
        code: CodeArgs::default(),
        profile: args.profile.clone(),
    })?;
    if !page.exists() {
        return Ok(exit);
    }
    folder.keep();
    if args.no_browser {
        out(&format!("{}\n", page.display()))?;
    } else {
        browser::show(page.as_os_str())?;
    }
    Ok(exit)
}

/// Writes the site's format in a private folder, shows the site, and serves the file.
fn in_site(args: &OpenArgs, site: &Site, out: Out<'_>) -> anyhow::Result<Exit> {
    let [file] = args.files.as_slice() else {
        return Err(Usage("a site takes one trace: name one, or use --in report".to_owned()).into());
    };
    let folder = private_folder().context("no temporary folder")?;
    let name = file_name(std::slice::from_ref(file), &site.format.suffix()[1..]);
    let output = folder.at().path().join(&name);
    let exit = convert::run(&ConvertArgs {
        files: vec![file.clone()],
        to: Some(site.format),
        output: Some(output.clone()),
        force: false,
        jobs: args.jobs,
        weight: None,
        perfetto_style: PerfettoStyle::default(),
        lines: false,
        merge_threads: None,
        all_threads: false,
        split: None,
        denormalized: false,
        profile: args.profile.clone(),
    })?;
    if !output.exists() {
        return Ok(exit);
    }
    let server = Server::bind(site.port, site.origin, &name)?;
    let address = server.address();
    let shown = if site.escaped { escaped(&address) } else { address };
    let address = format!("{}{shown}", site.address);
    // Named whatever else is quiet: it is another's page that reads the file.
    print_message(&format!("opening {}, whose page reads {name} from this machine", site.origin));
    if args.no_browser {
        out(&format!("{address}\n"))?;
    } else {
        browser::show(OsStr::new(&address))?;
    }
    let bytes = folder.at().join(&name).open()?;
    if server.serve(bytes)? {
        note("the page has the file; done");
        return Ok(exit);
    }
    anyhow::bail!(
        "{} did not read the file within {} s and the requests that stk answers: is there a browser, and does it let the page read from \
         127.0.0.1? stk convert writes the same file",
        site.origin,
        serve::LIMIT.as_secs()
    )
}

/// A plain name for the output of traces.
fn file_name(files: &[PathBuf], end: &str) -> String {
    let stem = match files {
        [file] => file.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        _ => "traces".to_owned(),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let stem: String = stem.chars().take(60).map(plain).collect();
    format!("{}.{end}", if stem.is_empty() { "trace" } else { &stem })
}

/// An address as a part of another one.
fn escaped(address: &str) -> String {
    percent_encoded(address, b"-._~")
}

/// A command line whose first argument is a trace, as one of `stk open`.
pub fn with_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_trace = |argument: &OsString| {
        let end = Path::new(argument).extension();
        end.is_some_and(|end| end.eq_ignore_ascii_case("stk"))
            && !argument.as_encoded_bytes().starts_with(b"-")
    };
    if arguments.get(1).is_some_and(is_trace) {
        arguments.insert(1, "open".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_alone_is_opened() {
        let of = |line: &[&str]| {
            let with = with_command(line.iter().map(OsString::from).collect());
            with.into_iter().map(|part| part.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(&["stk", "app.stk"]), "stk open app.stk");
        assert_eq!(of(&["stk", r"C:\a b\APP.STK", "-y", "x"]), r"stk open C:\a b\APP.STK -y x");
        for other in [&["stk"][..], &["stk", "info", "app.stk"], &["stk", "--x.stk"], &["stk", "help"]] {
            assert_eq!(of(other), other.join(" "));
        }
    }

    #[test]
    fn names_and_addresses_hold_nothing_that_a_site_could_misread() {
        let name = |file: &str| file_name(&[PathBuf::from(file)], "report.html");
        assert_eq!(name("lab/app.stk"), "app.report.html");
        assert_eq!(name("a&b#c 'd'.stk"), "a_b_c__d_.report.html");
        assert_eq!(name("..stk"), "_.report.html");
        assert_eq!(escaped("http://127.0.0.1:80/a~b"), "http%3A%2F%2F127.0.0.1%3A80%2Fa~b");
    }
}
