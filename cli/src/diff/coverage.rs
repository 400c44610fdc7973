//! Modules whose code has names on one side and not on the other. Their functions cannot be
//! compared: what has a name on one side is without one on the other.

use super::code::Code;
use super::collect::{BuildFunction, Naming, StackWeights};
use super::rounded;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use stk_profile::profile::{FunctionTree, NodeId};
use stk_profile::stack::Interner;

/// Parts of a module's code by the source of their names must differ by this to matter.
const UNEVEN: f64 = 0.1;
/// Below this part of both sides a module does not matter.
const LEAST: f64 = 0.001;

/// A module whose names one side lacks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Unmatched {
    /// Its file name.
    pub module: String,
    /// In lower case.
    #[serde(skip)]
    pub(super) key: String,
    /// The side that lacks names: `base` or `new`.
    pub lacks: &'static str,
    /// Percent of base's whole in its code.
    pub base_pct: f64,
    /// Percent of new's whole in its code.
    pub new_pct: f64,
    /// Percent of its code that has a name from symbols in base.
    pub base_named_pct: f64,
    /// The same in new.
    pub new_named_pct: f64,
}

/// Weights of code by module and by the source of its name.
#[derive(Clone, Default, Debug)]
pub(super) struct Coverage {
    /// By module in lower case: from symbols, after exports, none.
    modules: BTreeMap<String, [u64; 3]>,
}

/// Where the weight of functions goes.
pub(super) struct CoverageOfFunctions {
    /// In lower case, each once.
    modules: Vec<String>,
    /// By function: its module and the source of its name.
    of_functions: Vec<(u32, Naming)>,
}

impl CoverageOfFunctions {
    /// `names` are the numbers of the functions in `code`.
    pub(super) fn new(functions: &[BuildFunction], code: &Code, names: &[u32]) -> CoverageOfFunctions {
        let mut modules: Interner<&str> = Interner::default();
        let of = |(function, name): (&BuildFunction, &u32)| {
            (modules.intern(&code.functions.values[*name as usize].module), function.naming)
        };
        let of_functions = functions.iter().zip(names).map(of).collect();
        let modules = modules.values.iter().map(|&module| module.to_owned()).collect();
        CoverageOfFunctions { modules, of_functions }
    }

    /// The coverage of a trace with these stacks.
    pub(super) fn of(&self, weights: &StackWeights, calls: &FunctionTree) -> Coverage {
        let mut sums = vec![[0u64; 3]; self.modules.len()];
        for &(call, ns) in &weights.stacks {
            let (module, naming) = self.of_functions[calls.function(NodeId(call)) as usize];
            let sum = &mut sums[module as usize][naming as usize];
            *sum = sum.saturating_add(ns);
        }
        let modules = self.modules.iter().zip(sums).filter(|(_, sums)| *sums != [0; 3]);
        Coverage { modules: modules.map(|(module, sums)| (module.clone(), sums)).collect() }
    }
}

impl Coverage {
    pub(super) fn sum<'a>(all: impl Iterator<Item = &'a Coverage>) -> Coverage {
        let mut sum = Coverage::default();
        for (module, parts) in all.flat_map(|coverage| &coverage.modules) {
            let sums = sum.modules.entry(module.clone()).or_default();
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum = sum.saturating_add(*part));
        }
        sum
    }

    fn whole(&self) -> f64 {
        self.modules.values().flatten().map(|&ns| ns as f64).sum()
    }

    /// The part that has names from symbols.
    pub(super) fn named(&self) -> f64 {
        let named: f64 = self.modules.values().map(|parts| parts[Naming::Symbols as usize] as f64).sum();
        named / self.whole().max(1.0)
    }

    /// A module's part of the whole, and the parts of its code by the source of their names. `None`
    /// if it has no weight.
    fn of_module(&self, module: &str) -> Option<(f64, [f64; 3])> {
        let parts = self.modules.get(module)?;
        let sum: f64 = parts.iter().map(|&ns| ns as f64).sum();
        Some((sum / self.whole().max(1.0), parts.map(|ns| ns as f64 / sum.max(1.0))))
    }
}

/// The modules whose names one side lacks, greatest first. A module that only one side has is not
/// among them: there is nothing to compare it with.
pub(super) fn unmatched([base, new]: &[Coverage; 2], code: &Code) -> Vec<Unmatched> {
    let modules: BTreeSet<&String> = base.modules.keys().collect();
    let mut found: Vec<Unmatched> = modules
        .into_iter()
        .filter_map(|module| {
            let (of_base, base_parts) = base.of_module(module)?;
            let (of_new, new_parts) = new.of_module(module)?;
            if !is_uneven(&base_parts, &new_parts) || of_base.max(of_new) < LEAST {
                return None;
            }
            let rank = |parts: &[f64; 3]| parts[Naming::Symbols as usize] - parts[Naming::None as usize];
            Some(Unmatched {
                module: code.title(module).to_owned(),
                key: module.clone(),
                lacks: if rank(&base_parts) < rank(&new_parts) { "base" } else { "new" },
                base_pct: rounded(100.0 * of_base),
                new_pct: rounded(100.0 * of_new),
                base_named_pct: rounded(100.0 * base_parts[Naming::Symbols as usize]),
                new_named_pct: rounded(100.0 * new_parts[Naming::Symbols as usize]),
            })
        })
        .collect();
    found.sort_by(|a, b| {
        let size = |module: &Unmatched| module.base_pct.max(module.new_pct);
        size(b).total_cmp(&size(a)).then_with(|| a.key.cmp(&b.key))
    });
    found
}

/// Whether one side lacks names that the other has. How much of a module's code is named after
/// exports depends on the code that ran, unless one side has none at all.
fn is_uneven(base: &[f64; 3], new: &[f64; 3]) -> bool {
    let differs = |naming: Naming| (base[naming as usize] - new[naming as usize]).abs() > UNEVEN;
    let export = Naming::Export as usize;
    let one_without = (base[export] > 0.0) != (new[export] > 0.0);
    differs(Naming::Symbols) || (one_without && differs(Naming::Export))
}

/// How much of a side is in modules whose names each side lacks, in percent: the greater of both
/// sides' parts.
pub(super) fn lacking(unmatched: &[Unmatched]) -> Vec<(&'static str, f64)> {
    let of = |lacking: &'static str| {
        let modules = || unmatched.iter().filter(move |module| module.lacks == lacking);
        let base: f64 = modules().map(|module| module.base_pct).sum();
        let new: f64 = modules().map(|module| module.new_pct).sum();
        (lacking, base.max(new))
    };
    [of("base"), of("new")].into_iter().filter(|(_, share)| *share > 0.0).collect()
}
