//! The functions, modules and stacks of a comparison, each once, under names that are the same in
//! both builds.

use super::Axis;
use super::collect::BuildFunction;
use std::collections::HashMap;
use stk_base::model::stable_name;
use stk_profile::profile::{FunctionTree, NodeId};
use stk_profile::stack::Interner;

/// A function in all builds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct CodeName {
    /// File name of the module, in lower case; empty for code in no module.
    pub module: String,
    /// `None`: what has no name in the module, all of it.
    pub function: Option<String>,
}

/// What is compared as one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum RowKey {
    /// An index in [`Code::functions`].
    Function(u32),
    /// A name in lower case.
    Module(String),
    /// One of [`Code::stacks`].
    Stack(NodeId),
    /// All of a trace.
    Whole,
}

/// All code of a comparison.
#[derive(Default, Debug)]
pub(super) struct Code {
    pub functions: Interner<CodeName>,
    /// Its functions are indices in `functions`.
    pub stacks: FunctionTree,
    pub rows: Interner<RowKey>,
    /// File names of modules as they were first met, by that in lower case.
    titles: HashMap<String, String>,
}

impl Code {
    /// Numbers of a trace's functions.
    pub(super) fn add_functions(&mut self, functions: &[BuildFunction], renames: &mut Renames) -> Vec<u32> {
        functions
            .iter()
            .map(|function| {
                let module = function.module.to_lowercase();
                let name = CodeName { module, function: function.name.clone() };
                let name = renames.apply(name);
                self.titles.entry(name.module.clone()).or_insert_with(|| {
                    if name.module == function.module.to_lowercase() {
                        function.module.clone()
                    } else {
                        name.module.clone()
                    }
                });
                self.functions.intern(name)
            })
            .collect()
    }

    /// The row that a function counts for.
    pub(super) fn row_of_function(&mut self, function: u32, by: Axis) -> u32 {
        match by {
            Axis::Module => {
                let module = self.functions.values[function as usize].module.clone();
                self.rows.intern(RowKey::Module(module))
            }
            Axis::Function | Axis::Stack => self.rows.intern(RowKey::Function(function)),
        }
    }

    /// A module's name as its file is called.
    pub(super) fn title<'a>(&'a self, module: &'a str) -> &'a str {
        self.titles.get(module).map_or(module, String::as_str)
    }
}

/// Names of the base that are others in the new builds.
#[derive(Clone, Default, Debug)]
pub struct Renames {
    list: Vec<Rename>,
    /// By function of the base.
    known: HashMap<CodeName, CodeName>,
}

#[derive(Clone, Debug)]
struct Rename {
    /// As the user wrote it.
    text: String,
    old: String,
    new: String,
    /// Both are beginnings.
    prefix: bool,
    used: bool,
}

impl Renames {
    /// Takes `OLD=NEW`: functions (`work=work2`), functions of a module (`app.exe!work=run`),
    /// beginnings of both (`old::*=new::*`), or modules (`app-1.exe=app-2.exe`).
    ///
    /// # Errors
    ///
    /// Why that is none of these.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        let (old, new) = text.split_once('=').ok_or("has no =: give OLD=NEW")?;
        if old.is_empty() || new.is_empty() {
            return Err("names nothing on one side of its =".to_owned());
        }
        let (old, new, prefix) = match (old.strip_suffix('*'), new.strip_suffix('*')) {
            (Some(old), Some(new)) => (old, new, true),
            (None, None) => (old, new, false),
            _ => return Err("has a * on one side of its = alone".to_owned()),
        };
        let shown = |name: &str| if prefix { name.to_owned() } else { stable_name(name) };
        self.list.push(Rename {
            text: text.to_owned(),
            old: shown(old),
            new: shown(new),
            prefix,
            used: false,
        });
        Ok(())
    }

    /// Those that no function of the base had.
    pub(super) fn unused(&self) -> impl Iterator<Item = &str> {
        self.list.iter().filter(|rename| !rename.used).map(|rename| rename.text.as_str())
    }

    fn apply(&mut self, name: CodeName) -> CodeName {
        if self.list.is_empty() {
            return name;
        }
        if let Some(known) = self.known.get(&name) {
            return known.clone();
        }
        let mut renamed = name.clone();
        for rename in &mut self.list {
            if let Some(other) = rename.of(&renamed) {
                rename.used = true;
                renamed = other;
            }
        }
        self.known.insert(name, renamed.clone());
        renamed
    }
}

impl Rename {
    /// The name that replaces this one, if it does.
    fn of(&self, name: &CodeName) -> Option<CodeName> {
        if let Some(function) = &name.function {
            if let Some(new) = self.of_text(function) {
                return Some(CodeName { function: Some(new), ..name.clone() });
            }
            let whole = format!("{}!{function}", name.module);
            if let Some((module, old)) = self.old.split_once('!')
                && let Some(new) = self.with_old(&format!("{}!{old}", module.to_lowercase()), &whole)
            {
                let (module, function) = match new.split_once('!') {
                    Some((module, function)) => (module.to_lowercase(), function.to_owned()),
                    None => (name.module.clone(), new),
                };
                return Some(CodeName { module, function: Some(function) });
            }
        }
        let module = !self.prefix && !name.module.is_empty() && self.old.to_lowercase() == name.module;
        module.then(|| CodeName { module: self.new.to_lowercase(), ..name.clone() })
    }

    fn of_text(&self, text: &str) -> Option<String> {
        self.with_old(&self.old, text)
    }

    fn with_old(&self, old: &str, text: &str) -> Option<String> {
        let rest = text.strip_prefix(old)?;
        (self.prefix || rest.is_empty()).then(|| format!("{}{rest}", self.new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(texts: &[&str], module: &str, function: &str) -> (String, String) {
        let mut renames = Renames::default();
        texts.iter().for_each(|text| renames.add(text).unwrap());
        let name = CodeName { module: module.to_owned(), function: Some(function.to_owned()) };
        let name = renames.apply(name);
        (name.module, name.function.unwrap())
    }

    #[test]
    fn functions_modules_and_beginnings_are_renamed() {
        for (text, module, function) in [
            ("work=run", "app.exe", "run"),
            ("APP.exe!work=run", "app.exe", "run"),
            ("app.exe!work=Other.dll!run", "other.dll", "run"),
            ("app.exe=App-2.exe", "app-2.exe", "work"),
            ("wo*=do*", "app.exe", "dork"),
            ("app.exe!w*=x*", "app.exe", "xork"),
            ("other.dll!work=run", "app.exe", "work"),
            ("wor=run", "app.exe", "work"),
            ("work.cold=run", "app.exe", "run"),
        ] {
            let expected = (module.to_owned(), function.to_owned());
            assert_eq!(renamed(&[text], "app.exe", "work"), expected, "{text}");
        }
        assert_eq!(renamed(&["work=run", "run=go"], "a", "work").1, "go");
    }

    #[test]
    fn a_pattern_without_a_pair_is_refused_and_new_code_reported() {
        let mut renames = Renames::default();
        for text in ["work", "=run", "work=", "wo*=run", "wo=r*"] {
            assert!(renames.add(text).is_err(), "{text}");
        }
        renames.add("a=b").unwrap();
        renames.add("c=d").unwrap();
        renames.apply(CodeName { module: String::new(), function: Some("c".to_owned()) });
        assert_eq!(renames.unused().collect::<Vec<_>>(), ["a=b"]);
    }
}
