//! The command line: one file per subcommand, arguments in, calls into the library.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: see [`Exit`].

mod convert;
mod dump;
mod info;
mod pipeline;
mod progress;
mod select;
pub mod stats;
mod symbols;
mod verify;

pub use pipeline::{Loaded, ProfileArgs, SymbolArgs, check_symbols, closing_lines, load, load_images};
pub use progress::Progress;
pub use select::SelectArgs;

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

/// How a command ended, as the process's exit code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Ok = 0,
    /// It failed.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Input was damaged; what could be read was written.
    Damaged = 4,
    /// Fewer symbols were found than `--require-symbols` asks for.
    Symbols = 5,
    /// A difference over the threshold.
    Difference = 6,
}

impl Exit {
    /// The more serious of two endings: failure before damage before all else.
    pub fn worse(self, other: Exit) -> Exit {
        let rank = |exit| match exit {
            Exit::Ok => 0,
            Exit::Difference => 1,
            Exit::Symbols => 2,
            Exit::Damaged => 3,
            Exit::Failure => 4,
            Exit::Usage => 5,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

/// A mistake of the user's: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Converts, inspects and summarises .stk traces on any operating system.
#[derive(Parser, Debug)]
#[command(name = "stk", version, max_term_width = 110, disable_help_subcommand = true)]
#[command(after_help = "\
Exit codes:
  0    done (a trace that only ends early counts as whole, with a warning)
  1    failed
  2    wrong usage
  4    damaged input: what could be read was written
  5    fewer symbols than --require-symbols asks for
  130  interrupted

Environment:
  _NT_SYMBOL_PATH  where symbols are, beside -y
  RUST_LOG         diagnostics on standard error: error, warn, info, debug
  NO_COLOR         no colours

Examples:
  stk info app.stk
  stk convert app.stk --to speedscope -y C:\\build\\symbols
  stk convert *.stk --to parquet -o lab.parquet")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print the stacks of all threads at a moment
    Dump(dump::Args),
    /// Say what was recorded: what, when, where, modules, threads, samples, losses
    Info(info::Args),
    /// Say where the time went: functions, modules, threads, and what is wrong with the stacks
    Stats(stats::StatsArgs),
    /// Convert traces to other formats
    Convert(convert::Args),
    /// Check every block of traces and say what is lost
    Verify(verify::Args),
    /// Where names come from: list, fetch, bundle, check, lookup, cache
    Symbols(symbols::SymbolsArgs),
}

/// Runs the program: parses the command line, does what it says, gives the exit code.
pub fn run() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error")).init();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output with code 0, mistakes to standard error with code 2.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let result = match cli.command {
        Command::Convert(args) => convert::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Symbols(args) => symbols::run(&args),
    };
    let exit = result.unwrap_or_else(|error| {
        report(&error);
        if error.is::<Usage>() { Exit::Usage } else { Exit::Failure }
    });
    ExitCode::from(exit as u8)
}

/// How many threads to use.
pub fn jobs(wanted: Option<u16>) -> usize {
    match wanted {
        Some(jobs) => usize::from(jobs),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// A pool of so many threads.
///
/// # Errors
///
/// When the system gives no threads.
pub fn pool(wanted: Option<u16>) -> anyhow::Result<rayon::ThreadPool> {
    Ok(rayon::ThreadPoolBuilder::new().num_threads(jobs(wanted)).build()?)
}

/// Prints an error with its causes as one line on standard error.
pub fn report(error: &anyhow::Error) {
    eprintln!("stk: {error:#}");
}

/// Prints a warning on standard error.
pub fn warn(text: &str) {
    eprintln!("stk: warning: {text}");
}

/// Writes data to standard output. A reader that has gone away is no error.
///
/// # Errors
///
/// When standard output cannot be written for another reason.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// A count with separators, for people: 1234567 as 1,234,567.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size for people, in binary units.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A span of time for people.
pub fn span(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns {
        0..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..60_000_000_000 => format!("{seconds:.2} s"),
        _ => {
            let whole = ns / 1_000_000_000;
            format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
        }
    }
}

/// A moment as ISO 8601 in UTC, to the millisecond.
pub fn utc(ns_since_epoch: u64) -> String {
    let seconds = ns_since_epoch / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days as i64);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        ns_since_epoch / 1_000_000 % 1000
    )
}

/// Year, month and day of a day number since 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: i64) -> (i64, u32, u32) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = (doy - (153 * mp + 2) / 5 + 1) as u32;
    let month = if mp < 10 { mp + 3 } else { mp - 9 } as u32;
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn counts_sizes_and_spans_read_well() {
        assert_eq!(count(7), "7");
        assert_eq!(count(1234), "1,234");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(3 << 20), "3.0 MiB");
        assert_eq!(span(1_500_000), "1.5 ms");
        assert_eq!(span(61_000_000_000), "0:01:01");
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400_000_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(1_700_000_000_123_000_000), "2023-11-14T22:13:20.123Z");
    }

    #[test]
    fn failure_is_worse_than_damage() {
        assert_eq!(Exit::Ok.worse(Exit::Damaged), Exit::Damaged);
        assert_eq!(Exit::Failure.worse(Exit::Damaged), Exit::Failure);
    }
}
