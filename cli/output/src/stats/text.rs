//! The figures as text.

use super::page::{
    AnswerTotal, CountedTotal, Length, Page, PrintOptions, amount_columns, fitted, names_module, percent,
    share,
};
use super::question::Answer;
use super::timeline::{Bars, bar_columns};
use super::{Amount, FunctionStats, States, Stats, Totals, WaitStack, WaitStats};
use std::fmt::Write as _;
use std::io::{self, Write};
use stk_base::text::{count, counted, cut, moment, size, span, three, width};
use stk_profile::profile::{CpuSource, Weight};
use stk_schema::table::{Column, Table};
use stk_schema::text::printable;

/// Columns of a long name where no terminal limits them. Longer names only lose their alignment.
const NAME_WIDTH: usize = 60;
/// The fewest columns of a name, however narrow the terminal.
const LEAST_NAME: usize = 24;

/// Rows of functions and of waits in the short form.
const SHORT_FUNCTIONS: usize = 12;
const SHORT_WAITS: usize = 4;

/// Prints the figures of a trace.
pub fn print(stats: &Stats, out: &mut dyn Write, options: &PrintOptions) -> io::Result<()> {
    let mut page = Page { out, options: *options };
    let length = options.length;
    head(stats, &mut page)?;
    let mostly_waits = mostly_waits(stats);
    if length == Length::Waiting {
        return waiting(stats, &mut page);
    }
    if length == Length::Short {
        return short(stats, &mut page, mostly_waits);
    }
    if mostly_waits {
        waits(stats, usize::MAX, &mut page)?;
    }
    functions(stats, &mut page)?;
    modules(stats, &mut page)?;
    if !mostly_waits {
        waits(stats, usize::MAX, &mut page)?;
    }
    threads(stats, &mut page)?;
    stops(stats, &mut page)?;
    trusts(stats, &mut page)?;
    names(stats, &mut page)
}

/// Prints what a trace is, and the answer to a question.
pub fn print_answer(
    stats: &Stats,
    answer: &Answer,
    out: &mut dyn Write,
    options: &PrintOptions,
) -> io::Result<()> {
    let mut page = Page { out, options: *options };
    title(stats, &mut page)?;
    page.line(&cpu_line(stats))?;
    unread_line(stats).map_or(Ok(()), |line| page.line(&line))?;
    problems(stats, &mut page)?;
    answer.print(AnswerTotal { whole: CountedTotal::of(stats), all_ns: all_ns(stats) }, &mut page)
}

/// The weight of all samples, of which a part may be chosen; where that is not known, of the chosen
/// ones.
fn all_ns(stats: &Stats) -> u64 {
    let whole = stats.selection.as_ref().filter(|_| !stats.running_only).map(|share| share.whole);
    match (whole, stats.weight) {
        (Some(whole), Weight::Cpu) => whole.cpu_ns,
        (Some(whole), Weight::Wall) => whole.weight_ns,
        (Some(whole), Weight::Samples) => whole.samples.saturating_mul(stats.totals.interval_ns),
        (Some(_), Weight::Active | Weight::Waiting) | (None, _) => stats.counted_ns,
    }
}

fn short(stats: &Stats, page: &mut Page<'_>, mostly_waits: bool) -> io::Result<()> {
    if mostly_waits {
        waits(stats, SHORT_WAITS, page)?;
    }
    functions_by_self(stats, page.options.rows.unwrap_or(SHORT_FUNCTIONS), page)?;
    if !mostly_waits {
        waits(stats, SHORT_WAITS, page)?;
    }
    page.line("With --full: functions by callees, modules, threads, why stacks end, what has no name.")
}

/// Below this share of one processor, the waits are shown first.
const MOSTLY_WAITS: f64 = 0.1;

/// The CPU time as a share of one processor over the recording; `None` if it is not known.
fn cpu_share(stats: &Stats) -> Option<f64> {
    let Totals { cpu_ns, cpu_source, duration_ns, .. } = stats.totals;
    (cpu_source != CpuSource::None).then(|| cpu_ns as f64 / duration_ns.max(1) as f64)
}

/// Whether the threads waited nearly all the time, as far as their clocks were read.
fn mostly_waits(stats: &Stats) -> bool {
    let unread = stats.totals.unread_ns as f64 / stats.totals.duration_ns.max(1) as f64;
    cpu_share(stats).is_some_and(|share| share + unread < MOSTLY_WAITS)
}

fn title(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    let host = if stats.host.is_empty() { String::new() } else { format!(" on {}", printable(&stats.host)) };
    let process = printable(&stats.process);
    page.line(&format!(
        "{}: {process} (pid {}, {}){host}, {}",
        page.bold(&printable(&stats.source)),
        stats.pid,
        stats.arch,
        moment(stats.start_utc_ns, page.options.zone)
    ))?;
    match &stats.selection {
        Some(share) => page.line(&format!("  selection: {}", share.describe())),
        None => Ok(()),
    }
}

/// What is not whole.
fn problems(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if !stats.complete {
        page.line("  the recorder did not finish this trace: its last moments may be missing")?;
    }
    if !stats.damaged_blocks.is_empty() {
        page.line(&format!(
            "  {} could not be read",
            counted(stats.damaged_blocks.len() as u64, "damaged block")
        ))?;
    }
    match stats.totals.trusted.no_stack_ns {
        0 => {}
        ns => {
            let whole = CountedTotal::of(stats);
            let [amount, share] = whole.figures(ns);
            let (what, share) = (stats.weight.title(), share.trim_start());
            page.line(&format!(
                "  {amount} ({share}) of the {what} has no stack: the rows [no stack: REASON]"
            ))?;
        }
    }
    stats.notes.iter().try_for_each(|note| page.line(&format!("  {}", printable(note))))
}

fn head(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    let totals = &stats.totals;
    title(stats, page)?;
    page.line(&cpu_line(stats))?;
    unread_line(stats).map_or(Ok(()), |line| page.line(&line))?;
    states_line(stats, page)?;
    page.line(&rate_line(stats))?;
    problems(stats, page)?;
    let size = match (totals.file_bytes, totals.bytes_per_sample) {
        (Some(bytes), Some(each)) => format!("; {}, {each:.1} bytes a sample", size(bytes)),
        (Some(bytes), None) => format!("; {}", size(bytes)),
        _ => String::new(),
    };
    page.line(&format!(
        "  {} of {}, {}{size}",
        counted(totals.samples, "sample"),
        counted(totals.threads, "thread"),
        counted(totals.distinct_stacks, "distinct stack"),
    ))?;
    uncertainty_line(stats).map_or(Ok(()), |line| page.line(&line))?;
    trust_line(stats, page)
}

/// CPU time that the trace may lack, if it is over a hundredth of what it has.
fn unread_line(stats: &Stats) -> Option<String> {
    let Totals { unread_ns, cpu_ns, .. } = stats.totals;
    (unread_ns > cpu_ns / 100).then(|| {
        format!(
            "  up to {} of CPU time have no reading: recorded by a version that did not read the clocks of stacks that stand still",
            span(unread_ns)
        )
    })
}

/// Where the time went.
fn cpu_line(stats: &Stats) -> String {
    let totals = &stats.totals;
    let Some(cpu) = cpu_share(stats) else {
        return format!(
            "  CPU time is not recorded: the lists count {}; {} recorded",
            stats.weight.title(),
            span(totals.duration_ns)
        );
    };
    let mostly = if mostly_waits(stats) { "mostly waits: " } else { "" };
    let sampling = match totals.sampling_cpu_ns {
        0 => String::new(),
        ns => format!("; being sampled took about {} more", span(ns)),
    };
    let counted = match (totals.cpu_ns, stats.weight) {
        (0, weight) if weight != Weight::Cpu => format!("; the lists count {}", weight.title()),
        _ => String::new(),
    };
    format!(
        "  {mostly}CPU time {} in {}, {:.1} % of one processor{sampling}{counted}",
        span(totals.cpu_ns),
        span(totals.duration_ns),
        100.0 * cpu
    )
}

fn states_line(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    let part = |amount: Amount| {
        format!(
            "{} ({})",
            span(amount.weight_ns),
            percent(amount.weight_ns, stats.totals.weight_ns).trim_start()
        )
    };
    page.line(&format!(
        "  the threads' time: running or ready {}, waiting {}, in system calls {}, not known {}{}",
        part(stats.states.running),
        part(stats.states.waiting),
        part(stats.states.system_call),
        part(stats.states.unknown),
        used_between(stats),
    ))
}

/// The CPU time that the samples on a processor do not cover, as it stands behind the states.
fn used_between(stats: &Stats) -> String {
    match stats.totals.cpu_ns.saturating_sub(stats.states.running.weight_ns) {
        0 => String::new(),
        ns => format!("; {} of the CPU time were used in system calls and between samples", span(ns)),
    }
}

/// How many samples were taken of those asked for, and why not all.
fn rate_line(stats: &Stats) -> String {
    let totals = &stats.totals;
    let reasons: Vec<String> = stats
        .dropped
        .iter()
        .map(|dropped| format!("{} times {}", count(dropped.samples), printable(&dropped.reason)))
        .collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    if totals.samples == 0 {
        return "  no samples are in the selection".to_owned();
    }
    let missed = match totals.missed_share {
        share if share < 0.005 => "none missed".to_owned(),
        share => format!("{:.0} % missed", 100.0 * share),
    };
    let dropped = match totals.dropped {
        0 => String::new(),
        samples => format!("; {} dropped", count(samples)),
    };
    format!(
        "  {} of {} samples a second taken of each thread: {missed}{reasons}{dropped}",
        three(totals.achieved_hz),
        three(totals.asked_hz),
    )
}

/// That shares are of few samples: each has its uncertainty beside it.
fn uncertainty_line(stats: &Stats) -> Option<String> {
    let which = match stats.weight {
        Weight::Cpu | Weight::Active => " that do not wait",
        Weight::Waiting => " that wait",
        Weight::Wall | Weight::Samples => "",
    };
    CountedTotal::of(stats).few.map(|samples| {
        let samples = counted(samples, "sample");
        format!("  few samples: {samples}{which}; ± is how far chance moves a share, in 95 of 100 recordings")
    })
}

/// How far stacks and names can be trusted, by the weight that the lists count.
fn trust_line(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.counted_ns == 0 {
        return Ok(());
    }
    let part = |ns: u64| certain(ns, stats.counted_ns);
    let trusted = stats.totals.trusted;
    page.line(&format!(
        "  of the {}, {} is in proved stacks, {} in complete ones; {} in functions named from symbols, {} after exports",
        stats.weight.title(),
        part(trusted.proved_ns),
        part(trusted.complete_ns),
        part(trusted.named_ns),
        part(trusted.export_ns),
    ))
}

/// A share that is 100 % of all only, and 0 % of nothing only.
fn certain(part: u64, whole: u64) -> String {
    match percent(part, whole).trim_start() {
        "100.0 %" if part < whole => "99.9 %".to_owned(),
        "0.0 %" if part > 0 => "0.1 %".to_owned(),
        text => text.to_owned(),
    }
}

/// Functions of a stack in a line.
const STACK_FUNCTIONS: usize = 4;

/// The waits with their stacks.
fn waiting(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    waits(stats, usize::MAX, page)?;
    for wait in &stats.waits {
        page.heading(&format!("{} ({}), by stack", wait.reason, wait.class.as_str()))?;
        for stack in &wait.stacks {
            page.line(&format!(
                "  {:>10} {}  {}",
                span(stack.weight_ns),
                percent(stack.weight_ns, wait.weight_ns),
                stack_in_a_line(stack)
            ))?;
        }
    }
    Ok(())
}

/// The program's own functions of a stack, innermost first; the system's if there are no others.
fn stack_in_a_line(stack: &WaitStack) -> String {
    let own = &stack.functions[..stack.system.min(stack.functions.len())];
    let shown = if own.is_empty() { &stack.functions[..] } else { own };
    let names: Vec<String> = shown
        .iter()
        .rev()
        .take(STACK_FUNCTIONS)
        .map(|name| cut(&printable(name), NAME_WIDTH).into_owned())
        .collect();
    let more = if shown.len() > STACK_FUNCTIONS { " < …" } else { "" };
    format!("{}{more}", names.join(" < "))
}

/// The first `rows` waits.
fn waits(stats: &Stats, rows: usize, page: &mut Page<'_>) -> io::Result<()> {
    if stats.waits.is_empty() {
        return Ok(());
    }
    page.heading("Waits (the short ones between two samples are not seen)")?;
    let shown = &stats.waits[..rows.min(stats.waits.len())];
    page.table(&waits_table(shown.iter(), Some(stats.totals.weight_ns)))
}

/// Waits, with their shares of a whole.
pub(super) fn waits_table<'a>(waits: impl Iterator<Item = &'a WaitStats>, whole: Option<u64>) -> Table {
    let mut table = Table::new([
        Column::right("time").at_least(10),
        Column::right("").gap(if whole.is_some() { 1 } else { 0 }),
        Column::right("waits").gap(1).at_least(12),
        Column::right("longest").gap(1).at_least(10),
        Column::left("class").at_least(7),
        Column::left("for"),
    ]);
    for wait in waits {
        table.row([
            span(wait.weight_ns),
            whole.map(|whole| percent(wait.weight_ns, whole)).unwrap_or_default(),
            count(wait.waits),
            span(wait.longest_ns),
            wait.class.as_str().to_owned(),
            wait.reason.to_owned(),
        ]);
    }
    table
}

fn functions(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    functions_by_self(stats, usize::MAX, page)?;
    let heading = format!("Functions by {} with callees{}", stats.weight.title(), left_out(stats));
    function_rows(stats, &heading, &stats.functions_by_total, None, page)
}

/// The first `rows` functions by their own weight.
fn functions_by_self(stats: &Stats, rows: usize, page: &mut Page<'_>) -> io::Result<()> {
    let heading = format!("Functions by their own {}{}", stats.weight.title(), left_out(stats));
    let list = &stats.functions_by_self;
    let list = &list[..rows.min(list.len())];
    let shown = list.iter().map(|function| function.own.weight_ns).fold(0, u64::saturating_add);
    function_rows(stats, &heading, list, Some(stats.counted_ns.saturating_sub(shown)), page)
}

fn left_out(stats: &Stats) -> &'static str {
    if stats.running_only { " (waiting threads left out)" } else { "" }
}

fn function_rows(
    stats: &Stats,
    heading: &str,
    list: &[FunctionStats],
    others_ns: Option<u64>,
    page: &mut Page<'_>,
) -> io::Result<()> {
    if list.is_empty() {
        return Ok(());
    }
    page.heading(heading)?;
    let row = |f: &'_ FunctionStats| (f.own, f.total, f.function.clone(), module_of(f));
    // The list with callees has no others.
    let by = if others_ns.is_some() { ListedBy::Own } else { ListedBy::Total };
    amounts((CountedTotal::of(stats), by), page, list.iter().map(row), others_ns.filter(|ns| *ns > 0))
}

fn modules(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.modules.is_empty() {
        return Ok(());
    }
    page.heading(&format!("Modules by their own {}", stats.weight.title()))?;
    let name = |module: &str| if module.is_empty() { "(no module)".to_owned() } else { module.to_owned() };
    amounts(
        (CountedTotal::of(stats), ListedBy::Own),
        page,
        stats.modules.iter().map(|m| (m.own, m.total, name(&m.module), String::new())),
        None,
    )
}

/// A function's module; empty if the function's name contains it.
pub(super) fn module_of(function: &FunctionStats) -> String {
    let FunctionStats { function: name, module, .. } = function;
    if names_module(name, module) { String::new() } else { module.clone() }
}

/// Columns before the names of [`amounts`], and between them and the modules.
const BEFORE_NAME: usize = 40;
/// Columns of how uncertain a share is.
const UNCERTAINTY: usize = 6;
const GAP: usize = 2;

/// Which of its amounts orders a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListedBy {
    Own,
    Total,
}

/// Rows of self time, total time, a name and its module, and of the others' self time.
pub(super) fn amounts(
    (whole, by): (CountedTotal, ListedBy),
    page: &mut Page<'_>,
    rows: impl Iterator<Item = (Amount, Amount, String, String)>,
    others_ns: Option<u64>,
) -> io::Result<()> {
    let rows: Vec<_> = rows
        .map(|(own, total, name, module)| {
            (own, total, printable(&name).into_owned(), printable(&module).into_owned())
        })
        .collect();
    let module_columns = rows.iter().map(|row| width(&row.3)).max().unwrap_or(0);
    let before_name = BEFORE_NAME + if whole.few.is_some() { UNCERTAINTY } else { 0 };
    // A name is cut where its row would be longer than the terminal is wide.
    let most = page
        .options
        .columns
        .map(|all| all.saturating_sub(before_name + GAP + module_columns).max(LEAST_NAME));
    let columns = most.unwrap_or(NAME_WIDTH);
    let names = [Column::left("").at_most(columns), Column::left("")];
    let [own, total] = ["self", "total"].map(amount_columns);
    let [total, share] = total;
    let mut figures: Vec<Column> = own.into_iter().chain([total.gap(1).at_least(10), share]).collect();
    // Behind the share that orders the list.
    let uncertain = whole.few.map(|_| if by == ListedBy::Own { 2 } else { 4 });
    if let Some(at) = uncertain {
        figures.insert(at, Column::right("").gap(1).at_least(UNCERTAINTY - 1));
    }
    let mut table = Table::new(figures.into_iter().chain(names));
    for (own, total, name, module) in &rows {
        let name = match most {
            // Without a module behind it, a name may take those columns too.
            Some(left) if module.is_empty() => fitted(name, left + GAP + module_columns),
            Some(left) => fitted(name, left),
            None => name.into(),
        };
        let figures = [own, total].into_iter().flat_map(|amount| whole.figures(amount.weight_ns));
        let mut row: Vec<String> = figures.chain([name.into_owned(), module.clone()]).collect();
        if let Some(at) = uncertain {
            let ns = if by == ListedBy::Own { own.weight_ns } else { total.weight_ns };
            row.insert(at, whole.uncertainty(ns).unwrap_or_default());
        }
        table.row(row);
    }
    if let Some(ns) = others_ns {
        let mut row = whole.figures(ns).to_vec();
        row.extend(uncertain.map(|_| String::new()));
        row.extend(["", "", "others"].map(str::to_owned));
        table.row(row);
    }
    page.table(&table)
}

/// Columns of a thread's name. A terminal shows no more of a longer one.
const THREAD_NAME: usize = 32;

fn threads(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.threads.is_empty() {
        return Ok(());
    }
    let shown = stats.threads.len() as u64;
    let more = if shown < stats.totals.threads {
        format!(" ({} of {})", count(shown), count(stats.totals.threads))
    } else {
        String::new()
    };
    page.heading(&format!("Threads{more}"))?;
    let columns = page.options.columns;
    // A narrow terminal has no room for all.
    let is_wide = columns.is_none_or(|columns| columns >= 110);
    let timelines = stats.threads.iter().map(|thread| &thread.timeline);
    let Some(bars) = Bars::of(timelines, bar_columns(columns), page.options.ascii) else { return Ok(()) };
    let state = |heading: &str| Column::right(heading).at_least(7);
    let mut columns = vec![
        Column::right("tid").at_least(7),
        Column::left("name").at_most(THREAD_NAME),
        Column::right("CPU").at_least(9),
        state("running"),
        state("waiting"),
    ];
    if is_wide {
        columns.extend([state("system calls"), state("not known")]);
        columns.extend([
            Column::right("samples").gap(1).at_least(11),
            Column::right("a second").gap(1).at_least(9),
        ]);
    }
    columns.push(Column::left(bars.title()));
    let mut table = Table::new(columns);
    for thread in &stats.threads {
        let part = |state: Amount| percent(state.weight_ns, thread.all.weight_ns);
        let States { running, waiting, system_call, unknown } = thread.states;
        let cpu = if stats.totals.cpu_ns == 0 { "-".to_owned() } else { span(thread.cpu_ns) };
        let most = page.options.columns.map_or(usize::MAX, |_| THREAD_NAME);
        let name = cut(&printable(&thread.name), most).into_owned();
        let mut row = vec![thread.tid.to_string(), name, cpu, part(running), part(waiting)];
        if is_wide {
            row.extend([part(system_call), part(unknown)]);
            row.extend([count(thread.all.samples), three(thread.achieved_hz)]);
        }
        row.push(bars.line(Some(&thread.timeline)));
        table.row(row);
    }
    page.table(&table)
}

fn stops(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.stops.is_empty() {
        return Ok(());
    }
    page.heading("Where stacks end")?;
    for stop in &stats.stops {
        let mut text = stop.reason.as_str().to_owned();
        if stop.reason.is_complete() {
            text += " (complete)";
        }
        if !stop.module.is_empty() {
            let _ = write!(text, " in {}", printable(&stop.module));
        }
        page.line(&format!(
            "  {} {:>10} {}  {text}",
            share(stop.share),
            count(stop.samples),
            if stop.samples == 1 { "sample " } else { "samples" }
        ))?;
    }
    Ok(())
}

fn trusts(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.trusts.is_empty() {
        return Ok(());
    }
    page.heading("How frames were found")?;
    for trust in &stats.trusts {
        let mut text = trust.trust.as_str().to_owned();
        if !trust.proved {
            let module = if trust.module.is_empty() { "(no module)" } else { &trust.module };
            let _ = write!(text, " from {} (not proved)", printable(module));
        }
        page.line(&format!("  {} {:>10} frames   {text}", share(trust.share), count(trust.frames)))?;
    }
    Ok(())
}

fn names(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    let frames = &stats.frames;
    if frames.frames == 0 {
        return Ok(());
    }
    page.heading("Names of frames")?;
    for (amount, text) in [
        (frames.named, "from symbols"),
        (frames.export_only, "after the nearest export"),
        (frames.unresolved, "none"),
    ] {
        page.line(&format!("  {}  {text}", percent(amount, frames.frames)))?;
    }
    if frames.managed > 0 {
        page.line(&format!(
            "  of the {} frames in methods and other code of language runtimes {:.2} % have names",
            count(frames.managed),
            100.0 * frames.managed_named as f64 / frames.managed as f64
        ))?;
    }
    if !frames.causes.is_empty() {
        page.line("  of which without symbols:")?;
    }
    for cause in &frames.causes {
        let module = if cause.module.is_empty() { "(no module)".into() } else { printable(&cause.module) };
        let addresses = if cause.addresses == 1 { "address" } else { "addresses" };
        page.line(&format!(
            "    {} {module}: {} ({} {addresses}{})",
            share(cause.share),
            printable(&cause.cause),
            count(cause.addresses),
            if cause.export_only { ", export names only" } else { "" },
        ))?;
    }
    Ok(())
}
