//! Reads the functions of a Go program into an index.

use std::collections::HashMap;

use stk_base::model::bytes::{Cursor, c_str_at, u32_at};

use super::{GoFunction, GoTable};
use crate::index::build::{IndexBuilder, is_covered};
use crate::index::layout::{FunctionRecord, InlineRow, InlineSite, LineRow, NONE, RecordKind, StringId};

/// The table of a function with the number of the inlined call at each address, and the inlined
/// calls themselves (Go's `internal/abi`, `PCDATA_InlTreeIndex`, `FUNCDATA_InlTree`).
const INLINED_AT: u32 = 2;
const INLINED_CALLS: u32 = 3;
/// Limit for the inlined functions at one address.
const MAX_DEPTH: usize = 256;

/// Adds the functions that no range covers yet, and returns the number of those whose lines are
/// damaged.
pub(crate) fn add_functions(builder: &mut IndexBuilder, table: &GoTable<'_>) -> u32 {
    let covered = builder.covered(0);
    let mut files = HashMap::new();
    let mut damaged = 0;
    for function in table.functions() {
        if builder.is_exhausted() {
            break;
        }
        builder.spend(function.name.len());
        if function.name.is_empty() || is_covered(&covered, function.range.start) {
            continue;
        }
        let name = builder.string(function.name);
        let mut reader = FunctionReader { builder, table, files: &mut files, function: &function };
        let code = reader.code().unwrap_or_else(|| {
            damaged += 1;
            Code::default()
        });
        builder.add(&FunctionRecord {
            start: function.range.start,
            end: function.range.end,
            name,
            kind: RecordKind::Procedure,
            lines: &code.lines,
            sites: &code.sites,
            inlined: &code.inlined,
        });
    }
    damaged
}

/// What the tables of a function say.
#[derive(Default)]
struct Code {
    lines: Vec<LineRow>,
    sites: Vec<InlineSite>,
    inlined: Vec<InlineRow>,
}

struct FunctionReader<'a, 'd> {
    builder: &'a mut IndexBuilder,
    table: &'a GoTable<'d>,
    /// Names of files by their offset among them.
    files: &'a mut HashMap<u32, StringId>,
    function: &'a GoFunction<'d>,
}

/// A value by address: the offset in the function where it ends, and the value.
type Values = Vec<(u32, i32)>;

/// The value at an offset; -1 if there is none.
fn value_at(values: &Values, at: u32) -> i32 {
    values.get(values.partition_point(|&(end, _)| end <= at)).map_or(-1, |&(_, value)| value)
}

/// The values by address of a function.
struct Tables {
    file: Values,
    line: Values,
    inlined: Values,
    /// Offset of the inlined calls; `None` if they are not known.
    calls: Option<usize>,
    /// First entry of the function's unit in the list of files.
    unit: u32,
}

impl FunctionReader<'_, '_> {
    fn code(&mut self) -> Option<Code> {
        let tables = self.tables()?;
        let mut ends: Vec<u32> = [&tables.file, &tables.line, &tables.inlined]
            .iter()
            .flat_map(|values| values.iter().map(|&(end, _)| end))
            .collect();
        ends.sort_unstable();
        ends.dedup();
        let base = self.function.range.start;
        let mut code = Code::default();
        let mut sites = HashMap::new();
        let mut at = 0;
        for end in ends {
            if !self.builder.spend(size_of::<LineRow>()) {
                return None;
            }
            let (file, line) = self.line(&tables, at);
            let row = LineRow { start: base.checked_add(at)?, end: base.checked_add(end)?, file, line };
            match value_at(&tables.inlined, at) {
                call @ 0.. => match tables.calls {
                    Some(_) => {
                        let site = self.site(&tables, call, &mut code.sites, &mut sites)?;
                        code.inlined.push(InlineRow { site, row });
                    }
                    // The line is that of an unknown function.
                    None => code.lines.push(LineRow { file: NONE, line: 0, ..row }),
                },
                _ => code.lines.push(row),
            }
            at = end;
        }
        Some(code)
    }

    fn tables(&mut self) -> Option<Tables> {
        let GoTable { bytes, is_new, .. } = *self.table;
        let field = |at: usize| u32_at(bytes, self.function.record.checked_add(at)?);
        let [file, line, values, unit] = [20, 24, 28, 32].map(field);
        let (values, len) = (values?, if is_new { 44 } else { 40 });
        let count_of_data = field(len - 4)? >> 24;
        let number = |index: u32| field(len + 4 * index as usize);
        let inlined = if values > INLINED_AT { number(INLINED_AT)? } else { 0 };
        let data = values.checked_add(INLINED_CALLS).filter(|_| count_of_data > INLINED_CALLS);
        let calls = data.and_then(number).filter(|&offset| offset != u32::MAX).map(|offset| offset as usize);
        Some(Tables {
            file: self.values(file?)?,
            line: self.values(line?)?,
            inlined: self.values(inlined)?,
            calls: calls.filter(|_| self.table.trees.is_some()),
            unit: unit?,
        })
    }

    /// Decodes a table: differences of values and of addresses, up to a difference of 0.
    fn values(&mut self, offset: u32) -> Option<Values> {
        let mut values = Values::new();
        if offset == 0 {
            return Some(values);
        }
        let mut rest = Cursor::new(self.table.bytes.get(self.table.values.checked_add(offset as usize)?..)?);
        let len = self.function.range.end.saturating_sub(self.function.range.start);
        let (mut value, mut end) = (-1i32, 0u32);
        loop {
            let change = u32::try_from(rest.varint()?).ok()?;
            if change == 0 && !values.is_empty() {
                return Some(values);
            }
            let change = if change & 1 != 0 { !(change >> 1) } else { change >> 1 };
            value = value.wrapping_add(change as i32);
            end = end.checked_add(u32::try_from(rest.varint()?).ok()?.checked_mul(self.table.quantum)?)?;
            // The last one may reach behind the function's end. No other does.
            if end > len.saturating_add(1 << 12) || !self.builder.spend(8) {
                return None;
            }
            values.push((end.min(len), value));
        }
    }

    /// File and line at an offset in the function.
    fn line(&mut self, tables: &Tables, at: u32) -> (StringId, u32) {
        let line = u32::try_from(value_at(&tables.line, at)).unwrap_or(0);
        match self.file(tables, value_at(&tables.file, at)) {
            Some(file) if line != 0 => (file, line),
            _ => (NONE, 0),
        }
    }

    /// A file by its number in the function's unit.
    fn file(&mut self, tables: &Tables, number: i32) -> Option<StringId> {
        let entry = usize::try_from(tables.unit.checked_add(u32::try_from(number).ok()?)?).ok()?;
        let at = self.table.units.checked_add(entry.checked_mul(4)?)?;
        let offset = u32_at(self.table.bytes, at).filter(|&offset| offset != u32::MAX)?;
        if let Some(&known) = self.files.get(&offset) {
            return Some(known);
        }
        let name = self.table.files.checked_add(offset as usize)?;
        let name = c_str_at(self.table.bytes, name)?;
        let file = self.builder.string(name);
        self.files.insert(offset, file);
        Some(file)
    }

    /// The site of an inlined call, with those around it, which it follows in the list.
    fn site(
        &mut self,
        tables: &Tables,
        call: i32,
        sites: &mut Vec<InlineSite>,
        known: &mut HashMap<i32, u32>,
    ) -> Option<u32> {
        let mut chain = vec![call];
        let mut calls = Vec::new();
        while let Some(&call) = chain.last().filter(|call| **call >= 0 && !known.contains_key(call)) {
            let (name, at) = self.call(tables, call)?;
            calls.push((call, name, at));
            chain.push(value_at(&tables.inlined, at));
            // A call within itself never ends.
            if chain.len() > MAX_DEPTH {
                return None;
            }
        }
        let mut outer = chain.last().and_then(|call| known.get(call)).copied().unwrap_or(NONE);
        for (call, name, at) in calls.into_iter().rev() {
            let (call_file, call_line) = self.line(tables, at);
            let name = self.builder.string(self.table.name(name)?);
            self.builder.spend(size_of::<InlineSite>());
            sites.push(InlineSite { parent: outer, name, file: NONE, call_line, call_file });
            outer = sites.len() as u32 - 1;
            known.insert(call, outer);
        }
        Some(outer)
    }

    /// The name of an inlined function, and the offset of an instruction at the line of its call.
    fn call(&self, tables: &Tables, call: i32) -> Option<(u32, u32)> {
        let (size, name, at) = if self.table.is_new { (16, 4, 8) } else { (20, 12, 16) };
        let trees = self.table.trees?;
        let entry = tables.calls?.checked_add(usize::try_from(call).ok()?.checked_mul(size)?)?;
        Some((u32_at(trees, entry.checked_add(name)?)?, u32_at(trees, entry.checked_add(at)?)?))
    }
}
