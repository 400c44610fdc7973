//! What was loaded at a moment.

use serde::Serialize;
use stk_base::text::{TimeZone, counted, moment, since_start, size};
use stk_profile::trace::Trace;
use stk_schema::Ticks;
use stk_schema::event::ModuleFlags;
use stk_schema::table::{Column, Table};
use stk_schema::text::{file_name, printable};

/// A module that was loaded then.
#[derive(Serialize)]
pub(super) struct ModuleAt<'a> {
    module: &'a str,
    path: &'a str,
    base: String,
    size: u64,
    /// Null: it was there when the recording began.
    load_ns: Option<u64>,
    /// Null: it was not unloaded while the trace was recorded.
    unload_ns: Option<u64>,
}

/// The modules that were loaded at `time`, by address.
pub(super) fn at<'a>(trace: &'a Trace<'_>, time: Ticks) -> Vec<ModuleAt<'a>> {
    let timeline = &trace.timeline;
    let mut view = timeline.view();
    view.go(time);
    let module = |live: &stk_profile::trace::LiveModule| {
        let module = &timeline.modules[live.module as usize];
        let path = &timeline.images[module.image.0 as usize].image.path;
        let at_start = module.flags.contains(ModuleFlags::AT_START);
        ModuleAt {
            module: file_name(path),
            path,
            base: format!("{:#x}", module.base),
            size: module.size,
            load_ns: (!at_start).then(|| trace.clock.ns(module.load)),
            unload_ns: module.unload.map(|unload| trace.clock.ns(unload)),
        }
    };
    view.live().iter().map(module).collect()
}

/// A table of the modules that were loaded at `time`, below a heading.
pub(super) fn text(trace: &Trace<'_>, time: Ticks, zone: TimeZone) -> String {
    let modules = at(trace, time);
    let ns = trace.clock.ns(time);
    let clock = moment(trace.header().utc_start.saturating_add(ns), zone);
    let heading =
        format!("{clock} {} loaded at {}\n", counted(modules.len() as u64, "module"), since_start(ns));
    let mut table = Table::new([
        Column::left("base").gap(0),
        Column::right("size"),
        Column::right("loaded"),
        Column::right("unloaded"),
        Column::left("path"),
    ]);
    for module in &modules {
        table.row([
            module.base.clone(),
            size(module.size),
            module.load_ns.map_or_else(|| "at start".to_owned(), since_start),
            module.unload_ns.map_or_else(|| "-".to_owned(), since_start),
            printable(module.path).into_owned(),
        ]);
    }
    if modules.is_empty() { heading } else { heading + &table.text() }
}
