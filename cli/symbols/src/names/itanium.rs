//! Names of the Itanium scheme (C++ of MinGW, also Rust's old scheme), by the crates `cpp_demangle`
//! and `rustc-demangle`.

use std::fmt;

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// A name that takes the place of `operator co_await` while the rest is demangled.
const CO_AWAIT: &str = "stk_co_await";

/// The readable form of a name; `rest` is what stands behind its underscores and begins with `Z`.
pub(super) fn demangle(rest: &str, full: bool) -> Option<String> {
    // `stdcall` and `fastcall` of x86 add a number of bytes.
    let rest = match rest.rsplit_once('@') {
        Some((name, bytes)) if bytes.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => rest,
    };
    let raw = format!("_{}", behind_offsets(rest).map_or(rest.into(), |name| format!("Z{name}")));
    if let Ok(rust) = rustc_demangle::try_demangle(&raw) {
        return Some(format!("{rust:#}"));
    }
    let name = cpp(&raw, full).or_else(|| cpp(&in_older_form(&raw)?, full))?;
    Some(with_literal_operator(name).replace(CO_AWAIT, "operator co_await"))
}

fn cpp(raw: &str, full: bool) -> Option<String> {
    let symbol = Symbol::new_with_options(raw, &ParseOptions::default().recursion_limit(160)).ok()?;
    let mut options = DemangleOptions::new().recursion_limit(192);
    if !full {
        options = options.no_params().no_return_type();
    }
    let mut text = Bounded(String::new());
    symbol.structured_demangle(&mut text, &options).ok().map(|()| text.0)
}

/// A text that does not grow beyond what is shown.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > super::MAX_SHOWN {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The function that a virtual thunk leads to: what stands behind `ZTh`, `ZTv` or `ZTc` and the
/// offsets.
fn behind_offsets(rest: &str) -> Option<&str> {
    let number = |text: &'_ str| -> Option<usize> {
        let digits = text.strip_prefix('n').unwrap_or(text).trim_start_matches(|c: char| c.is_ascii_digit());
        digits.strip_prefix('_').map(|behind| text.len() - behind.len())
    };
    let offset = |text: &'_ str| -> Option<usize> {
        let first = 1 + number(text.get(1..)?)?;
        if text.starts_with('v') { Some(first + number(text.get(first..)?)?) } else { Some(first) }
    };
    let text = rest.strip_prefix("ZT").filter(|text| text.starts_with(['h', 'v', 'c']))?;
    match text.strip_prefix('c') {
        None => text.get(offset(text)?..),
        Some(text) => {
            let result = text.get(offset(text)?..)?;
            result.get(offset(result)?..)
        }
    }
}

/// The name in the form before clang 18: without the declarations of template parameters (`Tn` and
/// a type, `Tp`) in front of their arguments, and without `operator co_await` (`aw`). `None` if it
/// has none of these, or if its back references could no longer lead to the same parts.
fn in_older_form(raw: &str) -> Option<String> {
    let is_end = |rest: &str| rest.is_empty() || rest.starts_with(['E', 'I']);
    let (mut out, mut rest, mut after_name) = (raw.get(..2)?.to_owned(), raw.get(2..)?, true);
    let (mut changed, mut parameter, mut references) = (false, false, false);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let len = match rest.as_bytes() {
            [b'T', b'n' | b'p' | b'y', ..] => {
                let kind = match rest.as_bytes() {
                    [_, b'p' | b'y', ..] => 2,
                    [_, _, b'T', ..] => 3 + reference_len(rest.get(3..))?,
                    [_, _, b'D', b'a' | b'c' | b's' | b'u' | b'i' | b'n', ..] => 4,
                    [_, _, b'a'..=b'y', ..] => 3,
                    _ => return None,
                };
                parameter |= rest.starts_with("TnT");
                changed = true;
                rest = rest.get(kind..)?;
                continue;
            }
            [b'a', b'w', ..] if after_name && (out == "_Z" || is_end(&rest[2..])) => {
                changed = true;
                out += &format!("{}{CO_AWAIT}", CO_AWAIT.len());
                rest = &rest[2..];
                after_name = false;
                continue;
            }
            // The value of a literal.
            [b'L', b'a'..=b'z', ..] => rest.find('E')? + 1,
            [b'S' | b'T', ..] => {
                let len = reference_len(rest.get(1..));
                references |= rest.starts_with('S') && len.is_some();
                1 + len.unwrap_or(0)
            }
            _ if digits > 0 => rest[..digits].parse::<usize>().ok()?.checked_add(digits)?,
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
        after_name = digits > 0;
        out += rest.get(..len)?;
        rest = &rest[len..];
    }
    (changed && !(parameter && references)).then_some(out)
}

/// Bytes of what numbers a reference, behind its `S` or `T`.
fn reference_len(rest: Option<&str>) -> Option<usize> {
    let number = rest?.bytes().take_while(|c| c.is_ascii_digit() || c.is_ascii_uppercase()).count();
    rest?.get(number..)?.starts_with('_').then_some(number + 1)
}

/// `a::operator"" _km`, which `cpp_demangle` writes as `a::operator_km::operator ""`.
fn with_literal_operator(name: String) -> String {
    let repaired = || {
        let (before, behind) = name.split_once("::operator \"\"")?;
        let start = before.rfind([':', ' ']).map_or(0, |at| at + 1);
        let suffix = before[start..].strip_prefix("operator")?;
        Some(format!("{}operator\"\" {suffix}{behind}", &before[..start]))
    };
    repaired().unwrap_or(name)
}
