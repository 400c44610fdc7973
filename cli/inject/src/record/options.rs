//! The options of a recording that the agent gets as texts: reads them from the command line and
//! writes them as [`stk_schema::options`] says.

use stk_schema::options::{MAX_GLOB, MAX_OVERHEAD, THREADS, TRIGGER};

/// One option: its key and its value.
pub(crate) type AgentOption = (&'static str, String);

/// `key 0 value 0 …`.
pub(crate) fn bytes(options: &[AgentOption]) -> Vec<u8> {
    let texts = options.iter().flat_map(|(key, value)| [*key, value.as_str()]);
    texts.flat_map(|text| text.bytes().chain([0])).collect()
}

/// `--threads all|main|name=PATTERN|tid=N`.
pub(crate) fn threads(text: &str) -> Result<AgentOption, String> {
    let good = match text.split_once('=') {
        None => matches!(text, "all" | "main"),
        Some(("name", pattern)) => is_pattern(pattern),
        Some(("tid", tid)) => tid.parse::<u32>().is_ok_and(|tid| tid != 0),
        Some(_) => false,
    };
    if good {
        return Ok((THREADS, text.to_owned()));
    }
    Err(format!("'{text}' chooses no threads: write all, main, name=PATTERN or tid=N"))
}

/// `--max-overhead PCT`: percent of one processor, as millionths.
pub(crate) fn max_overhead(text: &str) -> Result<AgentOption, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let percent: f64 = number.parse().map_err(|_| format!("'{text}' is no number of percent"))?;
    if !(0.01..=100.0).contains(&percent) {
        return Err(format!("{text} percent of a processor: possible are 0.01 to 100"));
    }
    Ok((MAX_OVERHEAD, format!("{}", (percent * 10_000.0).round() as u32)))
}

/// `--trigger exception[=CODE]|breakpoint|module:PATTERN|api|cpu>PCT`.
pub(crate) fn trigger(text: &str) -> Result<AgentOption, String> {
    let wrong = || {
        format!(
            "'{text}' is no trigger: write exception, exception=CODE, breakpoint, module:NAME, api or \"cpu>PCT\""
        )
    };
    let value = if let Some(pattern) = text.strip_prefix("module:").filter(|pattern| is_pattern(pattern)) {
        format!("module={pattern}")
    } else if let Some(percent) = text.strip_prefix("cpu>") {
        let percent: u32 = percent.trim_end_matches('%').parse().map_err(|_| wrong())?;
        if percent > 100_000 {
            return Err(wrong());
        }
        format!("cpu={percent}")
    } else if let Some(code) = text.strip_prefix("exception=") {
        format!("exception={:#x}", exception_code(code).ok_or_else(wrong)?)
    } else if matches!(text, "exception" | "breakpoint" | "api") {
        text.to_owned()
    } else {
        return Err(wrong());
    };
    Ok((TRIGGER, value))
}

/// `0xC0000005`, `c0000005` or `3221225477`.
fn exception_code(text: &str) -> Option<u32> {
    let lower = text.to_ascii_lowercase();
    match lower.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None if lower.bytes().any(|byte| byte.is_ascii_alphabetic()) => u32::from_str_radix(&lower, 16).ok(),
        None => lower.parse().ok(),
    }
}

fn is_pattern(text: &str) -> bool {
    (1..=MAX_GLOB).contains(&text.len()) && !text.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(result: Result<AgentOption, String>) -> String {
        result.expect("a good one").1
    }

    #[test]
    fn options_are_written_as_the_agent_reads_them() {
        let options = [threads("main").expect("good"), max_overhead("2%").expect("good")];
        assert_eq!(bytes(&options), b"threads\0main\0max_overhead_ppm\x0020000\0");
        assert!(bytes(&[]).is_empty());
    }

    #[test]
    fn threads_are_chosen_by_their_kind_name_or_id() {
        for text in ["all", "main", "name=worker *", "tid=44"] {
            assert_eq!(threads(text), Ok((THREADS, text.to_owned())));
        }
        for text in ["", "some", "tid=0", "tid=x", "name=", "nam=e"] {
            assert!(threads(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_overhead_is_percent_of_a_processor() {
        assert_eq!([value(max_overhead("2")), value(max_overhead("0.5 %"))], ["20000", "5000"]);
        for text in ["0", "0.001", "101", "x", "nan", ""] {
            assert!(max_overhead(text).is_err(), "{text}");
        }
    }

    #[test]
    fn triggers_arrive_as_the_agent_knows_them() {
        for (text, wanted) in [
            ("exception", "exception"),
            ("breakpoint", "breakpoint"),
            ("api", "api"),
            ("exception=0xC0000005", "exception=0xc0000005"),
            ("exception=c0000005", "exception=0xc0000005"),
            ("exception=3221225477", "exception=0xc0000005"),
            ("module:secret*.dll", "module=secret*.dll"),
            ("cpu>150%", "cpu=150"),
        ] {
            assert_eq!(value(trigger(text)), wanted);
        }
        for text in
            ["exceptions", "exception=", "exception=xyz", "module:", "cpu>", "cpu>x", "cpu>-1", "api=1"]
        {
            assert!(trigger(text).is_err(), "{text}");
        }
    }
}
