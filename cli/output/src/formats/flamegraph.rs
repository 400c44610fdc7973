//! Flame graphs: an SVG that any browser opens, drawn by inferno. It needs no other file: the
//! script in it zooms and searches.
//!
//! Its stacks are those of folded stacks: [`FoldedStacks`]. Widths are counted in nanoseconds
//! (`total_samples`, `fg:w`) and shown in microseconds. A frame narrower than 0.01 % of the whole
//! is not drawn. Callers are above their callees. Colours are those of the report: a hue for each
//! module, grey for the system, violet for language runtimes.

use super::flame_svg::{self, NO_CODE, RUNTIME, SYSTEM, module_color};
use super::folded_stacks::{FoldedStacks, field};
use super::sink::Sink;
use super::source::exporter;
use super::unfold::{EMPTY, incomplete, wait_root};
use super::{Description, Destination, Format, Options, OutputError, Summary, Writer, finish_for, single};
use inferno::flamegraph::color::PaletteMap;
use std::borrow::Cow;
use stk_profile::profile::{Batch, Category, FrameId, FunctionId, Functions, Profile, Wait, Weight};
use stk_schema::text::printable;

pub(super) const FORMAT: Description = Description {
    name: "flamegraph",
    help: "SVG for browsers: a flame graph of all threads, callers on top, with zoom and search",
    suffix: ".flamegraph.svg",
    other_suffixes: &[".svg"],
    is_folder: false,
    names_source: true,
    takes_weight: true,
    has_time_line: false,
    create,
};

/// Nanoseconds are shown in this unit.
const UNIT: &str = "µs";
const UNITS_PER_NS: f64 = 1e-3;

fn create(to: Destination, options: &Options) -> Result<Box<dyn Writer>, OutputError> {
    let sink = single(Format::Flamegraph, to)?;
    let selection = options.selection.clone();
    Ok(Box::new(FlamegraphWriter { sink, selection, stacks: FoldedStacks::new(options) }))
}

struct FlamegraphWriter {
    sink: Sink,
    selection: String,
    stacks: FoldedStacks,
}

impl Writer for FlamegraphWriter {
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
        // One text for all lines: there can be hundreds of thousands.
        let mut text = Vec::new();
        self.stacks.visit(profile, |lines| {
            text.extend_from_slice(in_xml(&String::from_utf8_lossy(lines)).as_bytes());
            Ok(())
        })?;
        let text = String::from_utf8(text).map_err(|_| OutputError::Order("a stack is no text"))?;
        let title = self.title(profile);
        if text.is_empty() {
            self.write_empty(profile, &title);
        } else {
            let mut palette = palette(profile, self.stacks.by_line);
            let mut options = self.options(profile, title, &mut palette);
            flame_svg::draw(&mut options, text.lines().rev(), "", &mut self.sink)
                .map_err(OutputError::from_io)?;
        }
        self.sink.put(b"\n");
        finish_for("a browser", &mut self.sink)
    }
}

impl FlamegraphWriter {
    fn title(&self, profile: &Profile) -> String {
        let (trace, weight) = (&profile.trace, self.stacks.weight.title());
        in_xml(&printable(&format!("{} (pid {}): {weight}", trace.process, trace.pid))).into_owned()
    }

    fn options<'a>(
        &self,
        profile: &Profile,
        title: String,
        palette: &'a mut PaletteMap,
    ) -> inferno::flamegraph::Options<'a> {
        let mut options = flame_svg::options(title, Some(palette));
        let selection = Some(&self.selection).filter(|selection| !selection.is_empty());
        options.subtitle = selection.map(|selection| in_xml(&printable(selection)).into_owned());
        options.notes = exporter(profile);
        // Lines are drawn in our order, from the last to the first. As text, `main-2` would stand
        // between `main 5` and `main;work 5`, and `main` would be drawn twice.
        options.flame_chart = true;
        options.factor = UNITS_PER_NS;
        options.count_name = UNIT.to_owned();
        options
    }

    /// Writes a picture without frames.
    fn write_empty(&mut self, profile: &Profile, title: &str) {
        let (title, exporter) = (title.replace('&', "&amp;").replace('<', "&lt;"), exporter(profile));
        let text = format!(
            "<svg version=\"1.1\" width=\"100%\" height=\"80\" xmlns=\"http://www.w3.org/2000/svg\">\n\
             <!-- {exporter} -->\n\
             <text x=\"10\" y=\"30\">{title}</text>\n\
             <text x=\"10\" y=\"60\">No sample has this weight.</text>\n</svg>"
        );
        self.sink.put(text.as_bytes());
    }
}

/// The colours of the names that folded stacks have.
fn palette(profile: &Profile, by_line: bool) -> PaletteMap {
    let functions = Functions::new(profile, by_line);
    let mut categories: Vec<Option<Category>> = vec![None; functions.list().len()];
    for frame in (0..profile.frames.keys().len() as u32).map(FrameId) {
        for &FunctionId(function) in functions.of(frame) {
            // That of its first frame, as in the report.
            categories[function as usize].get_or_insert_with(|| profile.category(frame));
        }
    }
    let mut palette = PaletteMap::default();
    let mut set = |name: &str, color| {
        palette.insert(in_xml(&field(name)), color);
    };
    for (function, category) in functions.list().iter().zip(categories) {
        let color = match category {
            Some(Category::System) => SYSTEM,
            Some(category) if category.is_of_others() => RUNTIME,
            _ if function.module.is_empty() => NO_CODE,
            _ => module_color(&function.module),
        };
        set(&function.name, color);
    }
    profile.stops.iter().filter_map(incomplete).for_each(|text| set(&text, NO_CODE));
    Wait::all().into_iter().for_each(|wait| set(&wait_root(wait), NO_CODE));
    for name in ["", EMPTY] {
        palette.insert(name, NO_CODE);
    }
    palette
}

/// A text without the two characters that XML 1.0 (section 2.2) forbids and that are not control
/// characters. [`printable`] escaped those.
pub fn in_xml(text: &str) -> Cow<'_, str> {
    if !text.contains(['\u{fffe}', '\u{ffff}']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\u{fffe}', r"\u{fffe}").replace('\u{ffff}', r"\u{ffff}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_xml_forbids_are_escaped() {
        assert_eq!(in_xml("a\u{fffe}b\u{ffff}"), r"a\u{fffe}b\u{ffff}");
        assert!(matches!(in_xml("größe"), Cow::Borrowed(_)));
    }
}
