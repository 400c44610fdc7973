//! From runs and call tree to columns, and from columns to sorted tables.

use super::trust::trust_stats;
use super::{
    Amount, CauseStats, FrameStats, FunctionStats, ModuleStats, States, StopStats, ThreadStats, TrustStats,
};
use crate::profile::{Batch, FrameId, NameSource, Profile, Run, StrId};
use polars::prelude::*;
use std::collections::HashMap;
use stk_schema::event::RunState;

/// Sums per thread, stop reason and stack, filled run by run.
pub(super) struct Tables<'a> {
    profile: &'a Profile,
    running_only: bool,
    threads: Vec<ThreadStats>,
    stops: Vec<u64>,
    counted_ns: u64,
    /// By node.
    nodes: Vec<Amount>,
}

/// Tables that are ready to print.
pub(super) struct Summary {
    pub counted_ns: u64,
    pub distinct_stacks: u64,
    pub functions_by_self: Vec<FunctionStats>,
    pub functions_by_total: Vec<FunctionStats>,
    pub modules: Vec<ModuleStats>,
    /// All of them.
    pub threads: Vec<ThreadStats>,
    pub stops: Vec<StopStats>,
    pub trusts: Vec<TrustStats>,
    pub frames: FrameStats,
}

impl<'a> Tables<'a> {
    pub fn new(profile: &'a Profile, running_only: bool) -> Tables<'a> {
        let threads = profile
            .threads
            .iter()
            .map(|thread| ThreadStats {
                instance: thread.instance,
                tid: thread.tid,
                name: thread.name.clone(),
                all: Amount::default(),
                states: States::default(),
                cpu_ns: 0,
            })
            .collect();
        let stops = vec![0; profile.stops.len()];
        let nodes = vec![Amount::default(); profile.tree.nodes().len()];
        Tables { profile, running_only, threads, stops, counted_ns: 0, nodes }
    }

    pub fn add(&mut self, batch: &Batch<'_>) {
        let thread = &mut self.threads[batch.thread as usize];
        for run in batch.runs {
            thread.all.add(run);
            thread.states.of_mut(run.state).add(run);
            thread.cpu_ns += run.cpu_ns;
            if self.running_only && run.state == RunState::Waiting {
                continue;
            }
            self.stops[run.stop.0 as usize] += u64::from(run.samples);
            self.counted_ns += run.weight_ns;
            if let Some(node) = run.node {
                self.nodes[node.0 as usize].add(run);
            }
        }
    }

    pub fn finish(mut self, top: usize) -> anyhow::Result<Summary> {
        let distinct_stacks = self.nodes.iter().filter(|amount| amount.samples > 0).count() as u64;
        let names = Names::new(self.profile);
        let walk = Walk::new(self.profile, &names, &self.nodes);

        let functions = sums(&walk.functions, "function")?;
        let function = |row: Row| {
            let (name, module) = names.functions[row.id as usize];
            FunctionStats {
                function: self.profile.symbols.strings.get(name).to_owned(),
                module: names.modules[module as usize].clone(),
                own: row.own,
                total: row.total,
            }
        };
        let by = |column| -> anyhow::Result<Vec<FunctionStats>> {
            Ok(ranked(&functions, column, top)?.into_iter().map(function).collect())
        };
        let modules = sums(&walk.modules, "module")?;
        let modules = ranked(&modules, "self_ns", top)?
            .into_iter()
            .map(|row| ModuleStats {
                module: names.modules[row.id as usize].clone(),
                own: row.own,
                total: row.total,
            })
            .collect();

        self.threads.retain(|thread| thread.all.samples > 0);
        self.threads.sort_by_key(|t| {
            (std::cmp::Reverse((t.all.samples - t.states.waiting.samples, t.all.samples)), t.instance)
        });
        Ok(Summary {
            counted_ns: self.counted_ns,
            distinct_stacks,
            functions_by_self: by("self_ns")?,
            functions_by_total: by("total_ns")?,
            modules,
            threads: std::mem::take(&mut self.threads),
            stops: self.stop_stats(top)?,
            trusts: trust_stats(
                self.profile,
                &walk.through,
                &|frame| &names.modules[names.module_of[frame.0 as usize] as usize],
                top,
            ),
            frames: frame_stats(self.profile, &names, &walk, top)?,
        })
    }

    fn stop_stats(&self, top: usize) -> anyhow::Result<Vec<StopStats>> {
        let all: u64 = self.stops.iter().sum();
        let stops = &self.profile.stops;
        let table = df![
            "reason" => stops.iter().map(|s| s.reason).collect::<Vec<_>>(),
            "module" => stops.iter().map(|s| s.module.as_str()).collect::<Vec<_>>(),
            "samples" => &self.stops,
        ]?
        .lazy()
        .filter(col("samples").gt(lit(0u64)))
        .group_by([col("reason"), col("module")])
        .agg([col("samples").sum()])
        .sort(["samples", "reason", "module"], descending_first(3))
        .limit(top as IdxSize)
        .collect()?;
        let (reasons, modules) = (table.column("reason")?.str()?, table.column("module")?.str()?);
        let samples = table.column("samples")?.u64()?;
        Ok((0..table.height())
            .map(|i| {
                let samples = samples.get(i).unwrap_or(0);
                StopStats {
                    reason: reasons.get(i).unwrap_or_default().to_owned(),
                    module: modules.get(i).unwrap_or_default().to_owned(),
                    samples,
                    share: share(samples, all),
                }
            })
            .collect())
    }
}

impl Amount {
    fn add(&mut self, run: &Run) {
        self.samples += u64::from(run.samples);
        self.weight_ns += run.weight_ns;
    }

    fn add_amount(&mut self, other: Amount) {
        self.samples += other.samples;
        self.weight_ns += other.weight_ns;
    }
}

/// Functions, as (name, module), and modules, by name.
struct Names {
    modules: Vec<String>,
    /// By frame.
    module_of: Vec<u32>,
    functions: Vec<(StrId, u32)>,
    /// Functions of frame `i`, innermost first: `of_frames[starts[i]..starts[i + 1]]`.
    starts: Vec<u32>,
    of_frames: Vec<u32>,
}

impl Names {
    fn new(profile: &Profile) -> Names {
        let mut modules = vec![String::new()];
        let mut module_ids: HashMap<&str, u32> = HashMap::from([("", 0)]);
        let mut function_ids: HashMap<(StrId, u32), u32> = HashMap::new();
        let mut names = Names {
            modules: Vec::new(),
            module_of: Vec::new(),
            functions: Vec::new(),
            starts: vec![0],
            of_frames: Vec::new(),
        };
        for i in 0..profile.frames.keys().len() {
            let module = profile.module_name(FrameId(i as u32)).unwrap_or_default();
            let module = *module_ids.entry(module).or_insert_with(|| {
                modules.push(module.to_owned());
                modules.len() as u32 - 1
            });
            names.module_of.push(module);
            for name in profile.symbols.names(FrameId(i as u32)) {
                let id = *function_ids.entry((name.function, module)).or_insert_with(|| {
                    names.functions.push((name.function, module));
                    names.functions.len() as u32 - 1
                });
                names.of_frames.push(id);
            }
            names.starts.push(names.of_frames.len() as u32);
        }
        names.modules = modules;
        names
    }

    fn of(&self, frame: FrameId) -> &[u32] {
        let i = frame.0 as usize;
        &self.of_frames[self.starts[i] as usize..self.starts[i + 1] as usize]
    }
}

/// Columns of amounts by id, several rows an id.
#[derive(Default)]
struct Amounts {
    id: Vec<u32>,
    self_samples: Vec<u64>,
    self_ns: Vec<u64>,
    total_samples: Vec<u64>,
    total_ns: Vec<u64>,
}

impl Amounts {
    fn push(&mut self, id: u32, own: Amount, total: Amount) {
        self.id.push(id);
        self.self_samples.push(own.samples);
        self.self_ns.push(own.weight_ns);
        self.total_samples.push(total.samples);
        self.total_ns.push(total.weight_ns);
    }
}

/// What a walk over the call tree gives.
struct Walk {
    functions: Amounts,
    modules: Amounts,
    /// By node: samples of the stacks that go through it.
    through: Vec<Amount>,
}

impl Walk {
    /// Visits every stack that has samples, or leads to one, once. A function counts in "total" where it is first met on
    /// the way from the root, so recursion does not count it again.
    fn new(profile: &Profile, names: &Names, own: &[Amount]) -> Walk {
        let nodes = profile.tree.nodes();
        let mut through = own.to_vec();
        // A parent's id is smaller than its children's.
        for i in (0..nodes.len()).rev() {
            if let Some(parent) = nodes[i].parent {
                let amount = through[i];
                through[parent.0 as usize].add_amount(amount);
            }
        }
        let children = Children::new(profile);

        let (mut functions, mut modules) = (Amounts::default(), Amounts::default());
        let mut open_functions = vec![0u32; names.functions.len()];
        let mut open_modules = vec![0u32; names.modules.len()];
        // Nodes to enter, or, with true, to leave.
        let mut todo: Vec<(u32, bool)> = children.roots.iter().map(|&root| (root, false)).collect();
        while let Some((node, leave)) = todo.pop() {
            let i = node as usize;
            let frame = nodes[i].frame;
            let module = names.module_of[frame.0 as usize];
            if leave {
                for &function in names.of(frame) {
                    open_functions[function as usize] -= 1;
                }
                open_modules[module as usize] -= 1;
                continue;
            }
            if through[i].samples == 0 {
                continue;
            }
            for (position, &function) in names.of(frame).iter().enumerate() {
                let open = &mut open_functions[function as usize];
                let total = if *open == 0 { through[i] } else { Amount::default() };
                *open += 1;
                let own = if position == 0 { own[i] } else { Amount::default() };
                functions.push(function, own, total);
            }
            let open = &mut open_modules[module as usize];
            let total = if *open == 0 { through[i] } else { Amount::default() };
            *open += 1;
            modules.push(module, own[i], total);
            todo.push((node, true));
            todo.extend(children.of(node).iter().map(|&child| (child, false)));
        }
        Walk { functions, modules, through }
    }
}

/// The call tree from the root downwards.
struct Children {
    roots: Vec<u32>,
    starts: Vec<u32>,
    list: Vec<u32>,
}

impl Children {
    fn new(profile: &Profile) -> Children {
        let nodes = profile.tree.nodes();
        let mut starts = vec![0u32; nodes.len() + 1];
        let mut roots = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            match node.parent {
                Some(parent) => starts[parent.0 as usize + 1] += 1,
                None => roots.push(i as u32),
            }
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut list = vec![0; nodes.len() - roots.len()];
        for (i, node) in nodes.iter().enumerate() {
            if let Some(parent) = node.parent {
                let place = &mut next[parent.0 as usize];
                list[*place as usize] = i as u32;
                *place += 1;
            }
        }
        Children { roots, starts, list }
    }

    fn of(&self, node: u32) -> &[u32] {
        &self.list[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }
}

/// A row of a summed table.
struct Row {
    id: u32,
    own: Amount,
    total: Amount,
}

const AMOUNTS: [&str; 4] = ["self_samples", "self_ns", "total_samples", "total_ns"];

/// Sums the rows of each id.
fn sums(amounts: &Amounts, what: &str) -> anyhow::Result<DataFrame> {
    let table = df![
        "id" => &amounts.id,
        "self_samples" => &amounts.self_samples,
        "self_ns" => &amounts.self_ns,
        "total_samples" => &amounts.total_samples,
        "total_ns" => &amounts.total_ns,
    ]
    .map_err(|e| anyhow::anyhow!("{what} table: {e}"))?;
    Ok(table.lazy().group_by([col("id")]).agg(AMOUNTS.map(|name| col(name).sum())).collect()?)
}

/// The first rows by a column; ties by the other time, then by id, which is the order of first appearance.
fn ranked(table: &DataFrame, column: &str, top: usize) -> anyhow::Result<Vec<Row>> {
    let other = if column == "self_ns" { "total_ns" } else { "self_ns" };
    let options = SortMultipleOptions::default().with_order_descending_multi([true, true, false]);
    let table = table
        .clone()
        .lazy()
        .filter(col(column).gt(lit(0u64)))
        .sort([column, other, "id"], options)
        .limit(top as IdxSize)
        .collect()?;
    let id = table.column("id")?.u32()?;
    let [self_samples, self_ns, total_samples, total_ns] =
        AMOUNTS.map(|name| table.column(name).and_then(|c| c.u64()));
    let (self_samples, self_ns, total_samples, total_ns) =
        (self_samples?, self_ns?, total_samples?, total_ns?);
    let amount = |samples: &UInt64Chunked, ns: &UInt64Chunked, i| Amount {
        samples: samples.get(i).unwrap_or(0),
        weight_ns: ns.get(i).unwrap_or(0),
    };
    Ok((0..table.height())
        .map(|i| Row {
            id: id.get(i).unwrap_or(0),
            own: amount(self_samples, self_ns, i),
            total: amount(total_samples, total_ns, i),
        })
        .collect())
}

fn frame_stats(profile: &Profile, names: &Names, walk: &Walk, top: usize) -> anyhow::Result<FrameStats> {
    let symbols = &profile.symbols;
    let (mut frame_column, mut module, mut cause, mut export_only, mut frames) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut all = 0;
    for (node, amount) in profile.tree.nodes().iter().zip(&walk.through) {
        all += amount.samples;
        let i = node.frame.0 as usize;
        let source = symbols.source[i];
        if amount.samples == 0 || source.is_certain() {
            continue;
        }
        frame_column.push(node.frame.0);
        module.push(names.modules[names.module_of[i] as usize].as_str());
        cause.push(symbols.reason[i].map_or("cause not known", |reason| symbols.strings.get(reason)));
        export_only.push(source == NameSource::Export);
        frames.push(amount.samples);
    }
    let of_kind = |wanted: bool| -> u64 {
        export_only.iter().zip(&frames).filter(|(e, _)| **e == wanted).map(|(_, n)| n).sum()
    };
    let (exports, unresolved) = (of_kind(true), of_kind(false));
    let table = df!["frame" => frame_column, "module" => module, "cause" => cause, "export_only" => &export_only, "frames" => &frames]?
        .lazy()
        .group_by([col("module"), col("cause"), col("export_only")])
        .agg([col("frames").sum(), col("frame").n_unique().cast(DataType::UInt64).alias("addresses")])
        .sort(["frames", "module", "cause", "export_only"], descending_first(4))
        .limit(top as IdxSize)
        .collect()?;
    let (module, cause) = (table.column("module")?.str()?, table.column("cause")?.str()?);
    let (export_only, frames) = (table.column("export_only")?.bool()?, table.column("frames")?.u64()?);
    let addresses = table.column("addresses")?.u64()?;
    let causes = (0..table.height())
        .map(|i| CauseStats {
            module: module.get(i).unwrap_or_default().to_owned(),
            cause: cause.get(i).unwrap_or_default().to_owned(),
            export_only: export_only.get(i).unwrap_or(false),
            frames: frames.get(i).unwrap_or(0),
            addresses: addresses.get(i).unwrap_or(0),
            share: share(frames.get(i).unwrap_or(0), all),
        })
        .collect();
    Ok(FrameStats {
        frames: all,
        named: all - exports - unresolved,
        export_only: exports,
        unresolved,
        unresolved_share: share(unresolved, all),
        causes,
    })
}

/// Sorts by the first column downwards, by the others upwards.
fn descending_first(columns: usize) -> SortMultipleOptions {
    SortMultipleOptions::default().with_order_descending_multi((0..columns).map(|i| i == 0))
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
