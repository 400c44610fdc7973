//! How flame graphs look: drawn by inferno from the top down, in the colours of the report's page,
//! as wide as the window, dark where the reader's system is.

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection};
use std::fmt::Write as _;
use std::io::{self, Write};

/// Colours of page.css. Those of the dark page: STYLE.
const GROUND: Color = Color { r: 0xf6, g: 0xf7, b: 0xf9 };
const INK: Color = Color { r: 0x1b, g: 0x21, b: 0x29 };
const MATCH: &str = "#c2255c";
const LINE: &str = "#dfe3e9";
/// Code of the system.
pub(super) const SYSTEM: Color = Color { r: 0xbc, g: 0xca, b: 0xd9 };
/// Code of a language runtime.
pub(super) const RUNTIME: Color = Color { r: 0xc5, g: 0xbd, b: 0xe6 };
/// What is no code: why a stack ends, a wait, all threads together.
pub(super) const NO_CODE: Color = Color { r: 0xdf, g: 0xe3, b: 0xe9 };

/// Put behind inferno's own style, whose colours are attributes of the elements.
const STYLE: &str = "
text { fill: #1b2129; }
#frames > *:hover { stroke: #1b2129; }
#search { opacity: 0.6; }
@media (prefers-color-scheme: dark) {
  svg > rect { fill: #0e1116; }
  svg > text, #legend text { fill: #e6edf3; }
  #frames { opacity: 0.85; }
  #frames > *:hover { stroke: #e6edf3; }
}
";
const STYLE_END: &[u8] = b"</style>";
const FRAMES: &[u8] = b"<svg id=\"frames\"";
/// Bytes of a file among which both are.
const HEAD: usize = 64 << 10;

/// Hues of modules in degrees, lightness and chroma of Oklab: those of the report's page. Blue and
/// violet are the system's and the runtimes'.
const HUES: [u32; 10] = [62, 152, 15, 195, 105, 340, 128, 38, 172, 85];
const LIGHTNESS: f64 = 0.79;
const CHROMA: f64 = 0.105;

/// The colour of a module's functions: by its name.
pub(super) fn module_color(module: &str) -> Color {
    let letters = module.to_lowercase();
    let hash = letters.chars().fold(7u32, |hash, letter| hash.wrapping_mul(31).wrapping_add(letter.into()));
    oklch(LIGHTNESS, CHROMA, HUES[hash as usize % HUES.len()].into())
}

/// A colour by lightness, chroma and hue in degrees (CSS Color 4, "OKLCH to sRGB"). What sRGB does
/// not have is cut off.
fn oklch(light: f64, chroma: f64, hue: f64) -> Color {
    let (sin, cos) = hue.to_radians().sin_cos();
    let (a, b) = (chroma * cos, chroma * sin);
    let l = (light + 0.3963377774 * a + 0.2158037573 * b).powi(3);
    let m = (light - 0.1055613458 * a - 0.0638541728 * b).powi(3);
    let s = (light - 0.0894841775 * a - 1.2914855480 * b).powi(3);
    let part = |linear: f64| {
        let bright =
            if linear <= 0.0031308 { 12.92 * linear } else { 1.055 * linear.powf(1.0 / 2.4) - 0.055 };
        (255.0 * bright.clamp(0.0, 1.0)).round() as u8
    };
    Color {
        r: part(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
        g: part(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
        b: part(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s),
    }
}

/// What all flame graphs have in common. `palette`: the colours of names.
pub(super) fn options<'a>(title: String, palette: Option<&'a mut PaletteMap>) -> Options<'a> {
    let mut options = Options::default();
    options.title = title;
    options.deterministic = true;
    options.direction = Direction::Inverted;
    options.palette_map = palette;
    options.bgcolors = Some(BackgroundColor::Flat(GROUND));
    options.uicolor = INK;
    options.search_color = MATCH.parse().unwrap_or(options.search_color);
    options.text_truncate_direction = TextTruncateDirection::Right;
    options
}

/// Draws lines of folded stacks. `legend`: elements that are put before the frames.
///
/// # Errors
///
/// Those of `out`, and that there is nothing to draw.
pub(super) fn draw<'l>(
    options: &mut Options<'_>,
    lines: impl IntoIterator<Item = &'l str>,
    legend: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut styled = Styled { out, head: Some(Vec::new()), legend };
    inferno::flamegraph::from_lines(options, lines, &mut styled)?;
    styled.end()
}

/// The graph of a comparison: folded stacks with two counts each. `most`: the largest change of a
/// stack, as its legend says it; colours are in proportion to it.
///
/// # Errors
///
/// As of [`draw`].
pub fn draw_difference(
    title: String,
    (subtitle, count_name): (&str, &str),
    lines: &[String],
    most: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut options = options(title, None);
    options.subtitle = Some(subtitle.to_owned());
    options.count_name = count_name.to_owned();
    // What is unchanged is nearly white.
    options.stroke_color = LINE.parse().unwrap_or(options.stroke_color);
    draw(&mut options, lines.iter().map(String::as_str), &difference_legend(most), out)
}

/// Five colours of inferno's scale, from the least to the most, with their numbers.
fn difference_legend(most: &str) -> String {
    const COLORS: [&str; 5] = ["#6464ff", "#afafff", "#fafafa", "#ffafaf", "#ff6464"];
    const WIDTH: usize = 26;
    let mut legend = String::from("<g id=\"legend\">");
    let text = |legend: &mut String, x: usize, text: &str| {
        let _ = write!(legend, "<text x=\"{x}\" y=\"100%\" dy=\"-7\">{text}</text>");
    };
    let digits = most.chars().count() * 8;
    text(&mut legend, 10, &format!("\u{2212}{most}"));
    let first = 10 + 8 + digits + 6;
    for (at, color) in COLORS.iter().enumerate() {
        let x = first + at * WIDTH;
        let _ = write!(
            legend,
            "<rect x=\"{x}\" y=\"100%\" width=\"{WIDTH}\" height=\"12\" fill=\"{color}\" transform=\"translate(0 -17)\"/>"
        );
    }
    text(&mut legend, first + COLORS.len() * WIDTH + 6, &format!("+{most} in the function itself"));
    legend.push_str("</g>");
    legend
}

/// Adds the style and the legend to what inferno writes.
struct Styled<'w> {
    out: &'w mut dyn Write,
    /// The beginning, until the places are found.
    head: Option<Vec<u8>>,
    legend: &'w str,
}

impl Styled<'_> {
    /// Writes the beginning, if it is whole. `last`: nothing follows.
    fn settle(&mut self, last: bool) -> io::Result<()> {
        let Some(head) = &self.head else { return Ok(()) };
        let find = |what: &[u8]| head.windows(what.len()).position(|window| window == what);
        let places = find(STYLE_END).zip(find(FRAMES)).filter(|(style, frames)| style < frames);
        match places {
            Some((style, frames)) => {
                self.out.write_all(&head[..style])?;
                self.out.write_all(STYLE.as_bytes())?;
                self.out.write_all(&head[style..frames])?;
                self.out.write_all(self.legend.as_bytes())?;
                self.out.write_all(&head[frames..])?;
            }
            None if last || head.len() > HEAD => self.out.write_all(head)?,
            None => return Ok(()),
        }
        self.head = None;
        Ok(())
    }

    fn end(mut self) -> io::Result<()> {
        self.settle(true)
    }
}

impl Write for Styled<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.head {
            None => self.out.write_all(bytes)?,
            Some(head) => {
                head.extend_from_slice(bytes);
                // Nothing else of the beginning ends an element's first tag.
                if bytes.ends_with(b">") {
                    self.settle(false)?;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_the_page() {
        // The web platform's tests: oklch(62.7955% 0.25768 29.2339) is red, this one #008000.
        assert_eq!(oklch(0.627955, 0.25768, 29.2339), Color { r: 255, g: 0, b: 0 });
        assert_eq!(oklch(0.51975, 0.17686, 142.495), Color { r: 0, g: 128, b: 0 });
        assert_eq!(module_color("A.DLL"), module_color("a.dll"));
        let page = include_str!("../report/page/page.css");
        let colors = [("--system", SYSTEM), ("--runtime", RUNTIME), ("--ground", GROUND), ("--ink", INK)];
        for (name, Color { r, g, b }) in colors {
            let value = format!("{name}: #{r:02x}{g:02x}{b:02x};");
            assert!(page.contains(&value), "{value}");
        }
        assert!(page.contains(&format!("--match: {MATCH};")) && page.contains(&format!("--line: {LINE};")));
        assert!(page.contains("--light: 79%; --chroma: 0.105;"));
        let hues = HUES.map(|hue| hue.to_string()).join(", ");
        assert!(include_str!("../report/page/colour.js").contains(&format!("HUES = [{hues}];")));
    }

    #[test]
    fn style_and_legend_are_put_in_once() {
        let mut svg = Vec::new();
        let lines = ["a 1 2".to_owned(), "a;</style><svg id=\"frames\" 3 1".to_owned()];
        draw_difference("t".to_owned(), ("s", "n"), &lines, "5 %", &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert_eq!(svg.matches("prefers-color-scheme").count(), 1);
        assert_eq!(svg.matches("id=\"legend\"").count(), 1);
        let order = ["</style>", "id=\"legend\"", "<svg id=\"frames\""].map(|part| svg.find(part).unwrap());
        assert!(order.is_sorted(), "{order:?}");
        assert!(svg.contains("\u{2212}5 %") && svg.contains("+5 % in the function itself"));
    }
}
