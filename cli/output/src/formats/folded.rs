//! Folded stacks in the form of Brendan Gregg's `stackcollapse` scripts: `main;work;leaf COUNT`,
//! one line per distinct stack, the outermost function first.
//!
//! The count is in nanoseconds. How stacks become lines: [`FoldedStacks`].

use super::folded_stacks::FoldedStacks;
use super::sink::Sink;
use super::{Description, Destination, Format, Options, OutputError, Summary, Writer, single};
use stk_profile::profile::{Batch, Profile, Weight};

pub(super) const FORMAT: Description = Description {
    name: "folded",
    help: "Text, a line per distinct stack with its nanoseconds: flamegraph.pl, inferno, speedscope",
    suffix: ".folded",
    other_suffixes: &[],
    is_folder: false,
    names_source: false,
    takes_weight: true,
    has_time_line: false,
    create,
};

fn create(to: Destination, options: &Options) -> Result<Box<dyn Writer>, OutputError> {
    let sink = single(Format::Folded, to)?;
    Ok(Box::new(FoldedWriter { sink, stacks: FoldedStacks::new(options) }))
}

struct FoldedWriter {
    sink: Sink,
    stacks: FoldedStacks,
}

impl Writer for FoldedWriter {
    fn passes(&self) -> Vec<Weight> {
        vec![self.stacks.weight]
    }

    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        self.stacks.begin(profile);
        Ok(())
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        self.stacks.add(profile, batch)
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        let sink = &mut self.sink;
        self.stacks.visit(profile, |lines| sink.put_many(lines))?;
        self.sink.finish()
    }
}
