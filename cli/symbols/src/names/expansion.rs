//! Estimates the length of a demangled name without demangling it.
//!
//! All schemes can refer to parts that were named before. If such references are nested, a name of
//! a few hundred characters expands to more than any memory holds. The demanglers for the Itanium
//! scheme and for Rust have a limit for the length. Those for MSVC and Swift do not.

/// Estimated characters of the demangled name. Where the form is unknown, an upper limit.
pub(super) fn of(raw: &str) -> f64 {
    let scheme = raw.trim_start_matches('_');
    if raw.starts_with(['?', '@']) {
        Msvc::size(raw.as_bytes()).unwrap_or_else(|| evenly_spread(raw))
    } else if scheme.starts_with(['$', 'T']) {
        swift(raw.as_bytes())
    } else {
        raw.len() as f64
    }
}

/// Upper limit for an MSVC name of an unknown form. Its digits refer to earlier types. The result
/// is largest if they are spread evenly over the function types and templates, and each of these
/// refers to the one before.
fn evenly_spread(raw: &str) -> f64 {
    let is_level = |pair: &[u8]| b"PQRSAB".contains(&pair[0]) && b"68".contains(&pair[1]) || pair == b"?$";
    let levels = raw.as_bytes().windows(2).filter(|pair| is_level(pair)).count();
    let digits = raw.bytes().filter(u8::is_ascii_digit).count();
    grown(levels, digits) * raw.len() as f64
}

/// Upper limit for a Swift name. Substitutions are `A` with a letter for each, and before the
/// letter how often it is repeated. Generic types (`G`), optional ones (`Sg`) and others (`X`, `Q`)
/// add to the substitutions (Swift, docs/ABI/Mangling.rst).
fn swift(raw: &[u8]) -> f64 {
    let levels = raw.iter().filter(|c| b"GgXQ".contains(c)).count();
    let mut references = 0usize;
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|&c| c == b'A') {
        rest = &rest[at + 1..];
        let mut times = 0usize;
        while let [c @ (b'0'..=b'9' | b'a'..=b'z'), after @ ..] = rest {
            rest = after;
            if c.is_ascii_digit() {
                times = times.saturating_mul(10).saturating_add(usize::from(c - b'0')).min(1 << 20);
            } else {
                references += std::mem::take(&mut times).max(1);
            }
        }
        references += times.max(1);
    }
    grown(levels, references) * raw.len() as f64
}

/// How often a part can be repeated with this many references on this many levels.
fn grown(levels: usize, references: usize) -> f64 {
    let levels = levels.max(1) as f64;
    (1.0 + references as f64 / levels).powf(levels)
}

/// Reads the usual forms of MSVC's scheme (names of functions and variables, types, templates) in
/// the way of its demanglers, and adds up lengths. A reference counts as the longest thing that
/// it can refer to.
struct Msvc<'a> {
    rest: &'a [u8],
    /// Lengths of the longest name and of the longest type that a digit can refer to here.
    longest_name: f64,
    longest_type: f64,
    depth: u32,
}

/// Limit for types within types. The demangler stops before.
const DEPTH: u32 = 256;

impl Msvc<'_> {
    /// Length of a demangled name; `None` for other forms.
    fn size(raw: &[u8]) -> Option<f64> {
        let rest = raw.strip_prefix(b"@").unwrap_or(raw).strip_prefix(b"?")?;
        let mut name = Msvc { rest, longest_name: 0.0, longest_type: 0.0, depth: 0 };
        Some(name.qualified()? + name.encoding()?)
    }

    fn take(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn eat(&mut self, text: &[u8]) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Names from the innermost to the outermost, and the end.
    fn qualified(&mut self) -> Option<f64> {
        let mut size = self.part()?;
        while !self.eat(b"@") {
            size += self.part()?;
        }
        Some(size)
    }

    fn part(&mut self) -> Option<f64> {
        let size = match self.rest {
            [b'0'..=b'9', ..] => {
                self.take();
                return Some(self.longest_name);
            }
            [b'?', b'$', ..] => self.template()?,
            [b'?', b'A', ..] => self.identifier()?,
            [b'?', ..] => return self.operator(),
            _ => self.identifier()?,
        };
        self.longest_name = self.longest_name.max(size);
        Some(size)
    }

    fn identifier(&mut self) -> Option<f64> {
        let len = self.rest.iter().position(|&c| c == b'@')?;
        self.rest = &self.rest[len + 1..];
        Some(len as f64)
    }

    /// Constructors, destructors, operators: one character, or one behind an underscore.
    fn operator(&mut self) -> Option<f64> {
        self.take();
        match self.take()? {
            b'_' => matches!(self.take()?, b'0'..=b'9' | b'D'..=b'P' | b'S'..=b'V' | b'X').then_some(32.0),
            b'0' | b'1' | b'2'..=b'9' | b'C'..=b'Z' => Some(32.0),
            _ => None,
        }
    }

    /// `?$`, a name, arguments. Digits in it refer to parts within it.
    fn template(&mut self) -> Option<f64> {
        self.rest = &self.rest[2..];
        let outer = (self.longest_name, self.longest_type);
        (self.longest_name, self.longest_type) = (0.0, 0.0);
        let size = self.part()? + self.list()?;
        (self.longest_name, self.longest_type) = outer;
        Some(size)
    }

    /// The part behind the name. For a variable it is the type; for a function the access, the
    /// calling convention, the result and the parameters.
    fn encoding(&mut self) -> Option<f64> {
        match self.take()? {
            b'0'..=b'4' => self.one(),
            b'C' | b'D' | b'K' | b'L' | b'S' | b'T' | b'Y' | b'Z' => self.function(),
            b'A' | b'B' | b'E' | b'F' | b'I' | b'J' | b'M' | b'N' | b'Q' | b'R' | b'U' | b'V' => {
                while self.eat(b"E") || self.eat(b"F") || self.eat(b"I") {}
                self.take()?;
                self.function()
            }
            _ => None,
        }
    }

    /// Calling convention, result, parameters.
    fn function(&mut self) -> Option<f64> {
        self.take()?;
        let mut size = 0.0;
        if !self.eat(b"@") {
            if self.eat(b"?") {
                self.take()?;
            }
            size += self.one()?;
        }
        if !self.eat(b"XZ") {
            size += self.list()?;
            self.eat(b"Z").then_some(())?;
        }
        Some(size)
    }

    /// Types up to the end of their list.
    fn list(&mut self) -> Option<f64> {
        let mut size = 0.0;
        while !self.rest.is_empty() && !self.eat(b"@") && !self.eat(b"Z") {
            let before = self.rest.len();
            let one = self.one()?;
            // Types of one character, which include references, are not remembered.
            if before - self.rest.len() > 1 {
                self.longest_type = self.longest_type.max(one);
            }
            size += one;
        }
        Some(size)
    }

    fn one(&mut self) -> Option<f64> {
        self.depth += 1;
        let size = if self.depth > DEPTH { None } else { self.type_or_value() };
        self.depth -= 1;
        size
    }

    fn type_or_value(&mut self) -> Option<f64> {
        const SIMPLE: f64 = 8.0;
        match self.take()? {
            b'0'..=b'9' => Some(self.longest_type),
            b'T' | b'U' | b'V' => self.qualified(),
            b'W' => self.take().and_then(|_| self.qualified()),
            b'A' | b'B' | b'P'..=b'S' => self.pointee(),
            b'C'..=b'O' | b'X' => Some(SIMPLE),
            b'_' => self.take().map(|_| SIMPLE),
            b'$' if self.eat(b"0") => self.number(),
            b'$' if self.eat(b"$V") || self.eat(b"$Z") || self.eat(b"$T") || self.eat(b"$$V") => Some(SIMPLE),
            b'$' if self.eat(b"$Q") || self.eat(b"$R") => self.pointee(),
            b'$' if self.eat(b"$C") => self.take().and_then(|_| self.one()),
            b'$' if self.eat(b"$A6") => self.function(),
            _ => None,
        }
    }

    /// The type that a pointer or a reference points to.
    fn pointee(&mut self) -> Option<f64> {
        while self.eat(b"E") || self.eat(b"F") || self.eat(b"I") {}
        match self.take()? {
            b'6' => self.function(),
            b'A'..=b'D' => Some(self.one()? + 1.0),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<f64> {
        self.eat(b"?");
        if !self.take()?.is_ascii_digit() {
            while !self.eat(b"@") {
                self.take()?;
            }
        }
        Some(8.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Names from Microsoft's libraries and compilers, with the output of `undname` beside them.
    #[test]
    fn the_estimate_of_usual_names_is_close_to_their_length() {
        for (raw, shown) in [
            ("?what@exception@std@@UEBAPEBDXZ", "virtual char const * std::exception::what(void)const "),
            (
                "??0?$basic_string@DU?$char_traits@D@std@@V?$allocator@D@2@@std@@QEAA@QEBD@Z",
                "std::basic_string<char,std::char_traits<char>,std::allocator<char> >::basic_string(char const * const)",
            ),
            (
                "?insert@?$vector@HV?$allocator@H@std@@@std@@QEAA?AV?$_Vector_iterator@V?$_Vector_val@H@std@@@2@V32@AEBH@Z",
                "std::vector<int,std::allocator<int> >::insert(std::_Vector_iterator<std::_Vector_val<int> >,int const &)",
            ),
            ("?x@@3HA", "int x"),
        ] {
            let size = Msvc::size(raw.as_bytes()).unwrap_or_else(|| panic!("{raw}"));
            assert!(size < 4.0 * shown.len() as f64 + 40.0, "{raw}: {size}");
        }
    }

    /// Each level refers three more times to the one within it.
    fn nested(levels: usize) -> String {
        let inner = (0..levels).fold("Ux@@".to_owned(), |inner, _| format!("V?$A@{inner}000@@"));
        format!("?f@@YAX{inner}@Z")
    }

    #[test]
    fn the_estimate_matches_the_demanglers_output() {
        for levels in [3, 6] {
            // Each level refers three more times to the function type within it.
            let level = |inner, digit| format!("P6AX{inner}{digit}{digit}{digit}@Z");
            let raw = format!("?f@@YAX{}@Z", (0..levels).fold("Ux@@".to_owned(), level));
            let len = super::super::msvc::demangle(&raw, true).unwrap().len() as f64;
            assert!(len > 4f64.powi(levels) && len < 8.0 * of(&raw), "{levels}: {len}, {}", of(&raw));
        }
    }

    #[test]
    fn references_on_nested_levels_multiply() {
        assert!(of(&nested(3)) < 1e4);
        assert!(of(&nested(20)) > 1e9);
        let swift = |levels| format!("$s1a1GVySi_SiG{}D", "ADyAD_ADG".repeat(levels));
        assert!(of(&swift(1)) < 1e4);
        assert!(of(&swift(60)) > 1e9);
    }
}
