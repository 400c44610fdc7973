//! Names that a C# compiler makes, as the programmer wrote them.
//!
//! The compiler puts the body of a lambda, of a local function, and of a method with `await` or
//! `yield` into methods of its own, named after the method that holds it (Roslyn,
//! `GeneratedNameKind`): `<Run>b__3_1`, `<Main>g__Local|0_2`, and `MoveNext` of a type
//! `<HandleAsync>d__12`.

use std::borrow::Cow;

/// The name in readable form. `name` is `Namespace.Type.Method(signature)`, as runtimes report it.
///
/// ```text
/// App.Program+<>c__DisplayClass3_0.<Run>b__0(int32)   App.Program.Run [lambda 0](int32)
/// App.Program.<Main>g__Local|0_2(int32)               App.Program.Main.Local(int32)
/// App.Server+<HandleAsync>d__12.MoveNext()            App.Server.HandleAsync [state machine]()
/// ```
///
/// Names of other forms stay as they are.
pub fn readable(name: &str) -> Cow<'_, str> {
    let (dot, signature) = parts(name);
    let written = dot.and_then(|dot| path_as_written(&name[..dot], &name[dot + 1..signature]));
    match written {
        Some(path) => Cow::Owned(path + &name[signature..]),
        None => Cow::Borrowed(name),
    }
}

/// Where the last dot before the signature is and where the signature begins, outside of type
/// arguments and of the names of other methods.
fn parts(name: &str) -> (Option<usize>, usize) {
    let (mut depth, mut dot) = (0usize, None);
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'[' | b'<' => depth += 1,
            b']' | b'>' => depth = depth.saturating_sub(1),
            b'.' if depth == 0 => dot = Some(at),
            b'(' if depth == 0 => return (dot, at),
            _ => {}
        }
    }
    (dot, name.len())
}

fn path_as_written(owner: &str, method: &str) -> Option<String> {
    // The runtime puts type arguments of the method or of its type behind their names.
    let (bare, arguments) = method.find('[').map_or((method, ""), |at| method.split_at(at));
    if bare == "MoveNext" {
        let (outer, machine) = owner.split('[').next()?.rsplit_once('+')?;
        let (of, rest) = generated(machine)?;
        // The machine of a lambda has no number.
        let number = rest.strip_prefix('d')?.split('`').next()?;
        let is_machine = number.is_empty() || number.strip_prefix("__").is_some_and(is_number);
        return is_machine.then(|| format!("{}.{of} [state machine]", outside_of_closures(outer)));
    }
    let (of, rest) = generated(bare)?;
    let outer = outside_of_closures(owner);
    if let Some(numbers) = rest.strip_prefix("b__") {
        let lambda = numbers.rsplit('_').next()?;
        return is_number(lambda).then(|| format!("{outer}.{of} [lambda {lambda}]{arguments}"));
    }
    let (local, numbers) = rest.strip_prefix("g__")?.rsplit_once('|')?;
    let are_numbers = numbers.split('_').all(is_number);
    (are_numbers && !local.is_empty()).then(|| format!("{outer}.{of}.{local}{arguments}"))
}

/// The name between `<` and its `>`, and what follows it. The name may be one that was generated.
fn generated(name: &str) -> Option<(Cow<'_, str>, &str)> {
    let inner = name.strip_prefix('<')?;
    let mut depth = 1usize;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let of = &inner[..at];
            let of = if of.starts_with('<') { readable_part(of) } else { Cow::Borrowed(of) };
            return (!of.is_empty()).then_some((of, &inner[at + 1..]));
        }
        // No source nests so deeply.
        if depth > 8 {
            return None;
        }
    }
    None
}

/// A generated name within another: a lambda in a local function, or the like.
fn readable_part(name: &str) -> Cow<'_, str> {
    let Some((of, rest)) = generated(name) else { return Cow::Borrowed(name) };
    let local = rest.strip_prefix("g__").and_then(|rest| rest.rsplit_once('|'));
    let lambda = rest.strip_prefix("b__").and_then(|numbers| numbers.rsplit('_').next());
    match (local, lambda) {
        (Some((local, _)), _) => Cow::Owned(format!("{of}.{local}")),
        (None, Some(lambda)) if is_number(lambda) => Cow::Owned(format!("{of} [lambda {lambda}]")),
        _ => Cow::Borrowed(name),
    }
}

/// The type without the classes that hold what closures capture.
fn outside_of_closures(mut owner: &str) -> &str {
    while let Some((outer, nested)) = owner.rsplit_once('+')
        && (nested.starts_with("<>c") || nested.starts_with("<>o"))
    {
        owner = outer;
    }
    owner
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Roslyn's forms, as CoreCLR 10.0 reports them; the sources' names by hand.
    #[test]
    fn generated_names_become_those_of_the_source() {
        for (name, written) in [
            ("App.Program+<Main>d__0.MoveNext()", "App.Program.Main [state machine]()"),
            (
                "App.Server+<HandleAsync>d__12`1[System.__Canon].MoveNext()",
                "App.Server.HandleAsync [state machine]()",
            ),
            ("App.S+<H>d__12`1[App.A+B].MoveNext()", "App.S.H [state machine]()"),
            ("App.Iter+<Numbers>d__2.MoveNext()", "App.Iter.Numbers [state machine]()"),
            (
                "App.Program+<>c__DisplayClass3_0.<Run>b__0(class System.String)",
                "App.Program.Run [lambda 0](class System.String)",
            ),
            ("App.Program+<>c.<Run>b__3_1()", "App.Program.Run [lambda 1]()"),
            ("App.Program.<Main>g__Local|0_2(int32)", "App.Program.Main.Local(int32)"),
            ("App.Program+<>c__DisplayClass0_0.<Main>g__Local|0(int32)", "App.Program.Main.Local(int32)"),
            ("App.Program+<>c.<<Run>g__Inner|3_0>b__3_1()", "App.Program.Run.Inner [lambda 1]()"),
            ("App.Program+<>c+<<Run>b__3_0>d.MoveNext()", "App.Program.Run [lambda 0] [state machine]()"),
            ("Program.<Main>$(class System.String[])", "Program.<Main>$(class System.String[])"),
            ("A.B+<>c.<System.IDisposable.Dispose>b__1_0()", "A.B.System.IDisposable.Dispose [lambda 0]()"),
            ("A.B+<>c.<Get>b__1_0[System.__Canon](!!0)", "A.B.Get [lambda 0][System.__Canon](!!0)"),
        ] {
            assert_eq!(readable(name), written);
        }
    }

    #[test]
    fn other_names_stay_as_they_are() {
        for name in [
            "",
            ".",
            "<",
            "<>",
            "Main",
            "App.Program.Main(class System.String[])",
            "App.List`1+Enumerator[System.__Canon].MoveNext()",
            "App.Program..ctor()",
            "App.X.<Main>b__",
            "App.X.<Main>g__|0_0()",
            "App.X.<Main>z__1()",
            "App.X+<Main>d__.MoveNext()",
            "App.X+<Main>e__1.MoveNext()",
            "dynamicClass.IL_STUB_PInvoke(int32)",
            "A.B.op_LessThan(valuetype C<D>,int32)",
        ] {
            assert_eq!(readable(name), name);
        }
        let deep = "<".repeat(10_000);
        assert_eq!(readable(&format!("A.{deep}b__0")), format!("A.{deep}b__0"));
    }
}
