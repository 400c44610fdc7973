//! What is the same of a function in other builds: its name without what compilers number, and a
//! key of that.

use xxhash_rust::xxh3::Xxh3;

/// The key of a function in every build of its module.
pub fn function_key(module: &str, function: &str) -> i64 {
    let mut hash = Xxh3::new();
    hash.update(module.to_lowercase().as_bytes());
    hash.update(&[0]);
    hash.update(stable_name(function).as_bytes());
    hash.digest() as i64
}

/// What compilers add to the names of copies and parts of a function, perhaps with a number.
const PARTS: [&str; 6] = [".cold", ".part", ".constprop", ".isra", ".llvm", ".lto_priv"];

/// Texts, and the characters behind them that compilers number things with.
const NUMBERED: [(&str, &str); 8] = [
    ("<lambda_", "0123456789abcdef"), // MSVC: <lambda_4ba1…>
    ("$_", "0123456789"),             // clang: $_0
    ("{lambda#", "0123456789"),
    ("{closure#", "0123456789"),        // Rust
    ("{impl#", "0123456789"),           // Rust
    (">b__", "0123456789_"),            // C#, a lambda: <Main>b__0_1
    (">d__", "0123456789_"),            // C#, async and iterators: <Run>d__3
    ("c__DisplayClass", "0123456789_"), // C#, captured variables
];

/// A function's name without what changes from build to build: hashes, and numbers of lambdas,
/// clones and compiler-generated types.
pub fn stable_name(name: &str) -> String {
    let mut name = name;
    while let Some(shorter) = without_suffix(name) {
        name = shorter;
    }
    let mut out = String::with_capacity(name.len());
    while let Some(first) = name.chars().next() {
        match NUMBERED.iter().find(|(text, _)| name.starts_with(text)) {
            Some((text, digits)) => {
                out.push_str(text);
                name = name[text.len()..].trim_start_matches(|c| digits.contains(c));
            }
            None => {
                out.push(first);
                name = &name[first.len_utf8()..];
            }
        }
    }
    // GCC: main::{lambda(int)#1}; C#: <Main>g__Local|0_1.
    without_numbers(&without_numbers(&out, ")#"), "|")
}

/// The name without one suffix of a compiler.
fn without_suffix(name: &str) -> Option<&str> {
    if let Some((before, hash)) = name.rsplit_once("::h")
        && hash.len() == 16
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return Some(before);
    }
    if let Some((before, clone)) = name.rsplit_once(" [clone ")
        && clone.ends_with(']')
    {
        return Some(before);
    }
    let unnumbered = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let unnumbered = unnumbered.strip_suffix('.').filter(|_| unnumbered.len() < name.len());
    PARTS
        .iter()
        .find_map(|part| unnumbered.unwrap_or(name).strip_suffix(part))
        .filter(|rest| !rest.is_empty())
}

/// The text without the digits and underscores behind each `before`.
fn without_numbers(text: &str, before: &str) -> String {
    let mut parts = text.split(before);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + before + part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_other_builds() {
        for (one, other) in [
            ("core::fmt::write::h0123456789abcdef", "core::fmt::write::hfedcba9876543210"),
            ("work.cold", "work"),
            ("work.part.0.constprop.3", "work.isra.1"),
            ("work [clone .cold]", "work"),
            ("<lambda_4ba1b8>::operator()", "<lambda_99ff00aa>::operator()"),
            ("main::$_0::operator()", "main::$_12::operator()"),
            ("main::{lambda(int)#1}::operator()", "main::{lambda(int)#2}::operator()"),
            ("app::run::{closure#0}", "app::run::{closure#3}"),
            ("app!Program.<Main>b__0_1()", "app!Program.<Main>b__4_0()"),
            ("app!Program+<>c__DisplayClass1_0.<Run>b__0()", "app!Program+<>c__DisplayClass2_1.<Run>b__3()"),
            ("app!Program.<Main>g__Local|0_1()", "app!Program.<Main>g__Local|3_0()"),
        ] {
            assert_eq!(stable_name(one), stable_name(other));
        }
    }

    #[test]
    fn different_functions_keep_different_names() {
        let names =
            ["work", "work2", "work::h", "List`1.Add", "List`2.Add", "größe", "a.b", "a.1", ".cold", "x|y"];
        for (i, one) in names.iter().enumerate() {
            assert!(names[i + 1..].iter().all(|other| stable_name(one) != stable_name(other)), "{one}");
            assert_eq!(stable_name(one), *one);
        }
        assert_ne!(function_key("a.dll", "work"), function_key("b.dll", "work"));
        assert_eq!(function_key("A.DLL", "work"), function_key("a.dll", "work.cold"));
    }
}
