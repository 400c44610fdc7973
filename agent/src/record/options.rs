//! The options of a recording that come as texts ([`stk_schema::options`]).

use alloc::vec::Vec;

use stk_schema::options::{MAX_GLOB, MAX_OVERHEAD, THREADS, TRIGGER};

use super::exception_filter::ExceptionFilter;
use super::thread_filter::ThreadFilter;

/// Millionths of one processor that make up the whole of it.
pub(crate) const WHOLE_PROCESSOR: u64 = 1_000_000;
/// Most uses of CPU time, in percent of one processor, that a trigger can wait for.
const MOST_PERCENT: u64 = 100_000;

/// The options, all at their defaults if none was given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// The threads to sample.
    pub threads: ThreadFilter,
    /// Most CPU time of the recorder, in millionths of one processor.
    pub max_overhead: Option<u64>,
    /// The exceptions to record.
    pub exceptions: ExceptionFilter,
    /// Patterns of file names: a thread that loads such a module takes a sample of itself.
    pub modules: Vec<Vec<u8>>,
    /// Whether captures that the program asks for leave a mark.
    pub api: bool,
    /// Percent of one processor.
    pub cpu_percent: Option<u64>,
    /// What the trace says of the options: key and value, as they were given.
    pub reported: Vec<(&'static str, Vec<u8>)>,
}

/// Why options are refused: a sentence for the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OptionError(pub &'static str);

impl Options {
    /// Reads `key 0 value 0 …`.
    pub(crate) fn read(bytes: &[u8]) -> Result<Options, OptionError> {
        let mut options = Options::default();
        let mut texts = bytes.split(|&byte| byte == 0);
        while let (Some(key), Some(value)) = (texts.next(), texts.next()) {
            let text = core::str::from_utf8(value).map_err(|_| OptionError("an option is no UTF-8"))?;
            options.add(key, text)?;
        }
        Ok(options)
    }

    fn add(&mut self, key: &[u8], value: &str) -> Result<(), OptionError> {
        let check = |good: bool, error| if good { Ok(()) } else { Err(OptionError(error)) };
        if key == THREADS.as_bytes() {
            self.reported.push(("recorder.threads", value.into()));
            check(self.threads.add(value), "the option threads has a value that this agent does not know")
        } else if key == MAX_OVERHEAD.as_bytes() {
            let ppm = value.parse().ok().filter(|ppm| (1..=WHOLE_PROCESSOR).contains(ppm));
            self.reported.push(("recorder.max_overhead_ppm", value.into()));
            self.max_overhead = ppm;
            check(ppm.is_some(), "the option max_overhead_ppm is no part of a processor")
        } else if key == TRIGGER.as_bytes() {
            self.reported.push(("recorder.trigger", value.into()));
            check(self.trigger(value), "the option trigger has a value that this agent does not know")
        } else {
            Err(OptionError("an option is not known to this agent"))
        }
    }

    /// Adds a trigger; false if it is none.
    fn trigger(&mut self, value: &str) -> bool {
        match value.split_once('=') {
            None if value == "exception" => self.exceptions.add_errors(),
            None if value == "breakpoint" => self.exceptions.add_breakpoints(),
            None if value == "api" => self.api = true,
            Some(("exception", code)) => {
                return number(code).is_some_and(|code| self.exceptions.add_code(code));
            }
            Some(("module", glob)) if (1..=MAX_GLOB).contains(&glob.len()) => {
                self.modules.push(glob.as_bytes().to_vec());
            }
            Some(("cpu", percent)) => {
                self.cpu_percent = percent.parse().ok().filter(|percent| *percent <= MOST_PERCENT);
                return self.cpu_percent.is_some();
            }
            _ => return false,
        }
        true
    }
}

/// `3221225477` or `0xC0000005`.
fn number(text: &str) -> Option<u32> {
    stk_schema::typed::parse_number(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::thread_filter::ThreadTraits;

    fn read(options: &[(&str, &str)]) -> Result<Options, OptionError> {
        let text: std::string::String =
            options.iter().map(|(key, value)| std::format!("{key}\0{value}\0")).collect();
        Options::read(text.as_bytes())
    }

    #[test]
    fn no_options_are_all_threads_no_trigger_and_the_usual_share() {
        let options = Options::read(b"").unwrap();
        assert!(options.threads.takes_all() && options.exceptions.is_empty());
        assert!(options.modules.is_empty() && options.max_overhead.is_none() && !options.api);
        assert!(options.cpu_percent.is_none() && options.reported.is_empty());
    }

    #[test]
    fn every_option_arrives_and_is_reported_as_given() {
        let options = read(&[
            ("threads", "main"),
            ("threads", "name=pool*"),
            ("max_overhead_ppm", "20000"),
            ("trigger", "exception=0xC0000005"),
            ("trigger", "exception=77"),
            ("trigger", "breakpoint"),
            ("trigger", "module=secret*.dll"),
            ("trigger", "cpu=150"),
            ("trigger", "api"),
        ])
        .unwrap();
        let named = ThreadTraits { tid: 1, is_main: false, name: b"pool 2" };
        assert!(options.threads.takes(&named) && !options.threads.takes_all());
        assert_eq!(options.max_overhead, Some(20_000));
        let takes = |code| options.exceptions.takes(code);
        assert!(takes(0xc000_0005) && takes(77) && takes(0x8000_0003) && !takes(0xc000_0094));
        assert_eq!(options.modules, [b"secret*.dll".to_vec()]);
        assert_eq!((options.cpu_percent, options.reported.len()), (Some(150), 9));
        assert!(options.api);
        assert_eq!(options.reported[1], ("recorder.threads", b"name=pool*".to_vec()));
    }

    #[test]
    fn options_that_the_agent_does_not_know_are_refused() {
        for (key, value) in [
            ("colour", "red"),
            ("threads", "some"),
            ("max_overhead_ppm", "0"),
            ("max_overhead_ppm", "1000001"),
            ("trigger", "exception=xyz"),
            ("trigger", "exception=0x100000000"),
            ("trigger", "full moon"),
            ("trigger", "module="),
            ("trigger", "api="),
            ("trigger", "cpu=many"),
        ] {
            assert!(read(&[("threads", "all"), (key, value)]).is_err(), "{key} {value}");
        }
        assert!(Options::read(b"threads\0\xff\0").is_err());
    }
}
