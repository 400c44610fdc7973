//! Rules that give frames other names: `PATTERN -> NAME`, one a line. Frames of one name that
//! follow each other are one.

use super::frames::{for_names, of_frame};
use super::pattern::{FrameName, FunctionPattern, PatternError};
use crate::profile::copy::FrameCopy;
use crate::profile::{CallTree, FrameId, FrameKey, FrameKind, Node, NodeId, Placement, Profile, Runs, StrId};
use crate::stack::FrameFacts;
use std::collections::HashMap;
use std::str::FromStr;
use xxhash_rust::xxh3::xxh3_64;

/// Rules of a file at most: each function is matched against all of them.
const MOST_RULES: usize = 1000;
/// Letters of a name at most.
const MOST_LETTERS: usize = 200;
/// What stands between a pattern and its name.
const ARROW: &str = " -> ";

/// Rules for frames, in the order in which they are tried.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    /// Each with an index in `names`.
    list: Vec<(FunctionPattern, u32)>,
    /// The groups.
    names: Vec<String>,
}

/// A line that is no rule.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct RuleError {
    /// From 1.
    pub line: usize,
    pub why: WrongRule,
}

/// What is wrong with a rule.
#[derive(Debug, thiserror::Error)]
pub enum WrongRule {
    #[error("has no arrow; write PATTERN -> NAME")]
    NoArrow,
    #[error("has no pattern before its arrow")]
    NoPattern,
    #[error("has no name behind its arrow")]
    NoName,
    #[error("has a name of more than {MOST_LETTERS} letters")]
    LongName,
    #[error("has a control character in its name")]
    Control,
    #[error("is rule number {}; {MOST_RULES} are allowed: join patterns with |", MOST_RULES + 1)]
    TooMany,
    #[error("the pattern {0}")]
    Pattern(PatternError),
}

impl FromStr for Rules {
    type Err = RuleError;

    /// Empty lines and those that begin with `#` are no rules.
    fn from_str(text: &str) -> Result<Rules, RuleError> {
        let mut rules = Rules::default();
        let mut groups: HashMap<String, u32> = HashMap::new();
        for (line, text) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let wrong = |why| RuleError { line, why };
            let (pattern, name) = parts(text).map_err(wrong)?;
            if rules.list.len() == MOST_RULES {
                return Err(wrong(WrongRule::TooMany));
            }
            let pattern = pattern.parse().map_err(|error| wrong(WrongRule::Pattern(error)))?;
            let group = *groups.entry(name.to_owned()).or_insert_with(|| {
                rules.names.push(name.to_owned());
                rules.names.len() as u32 - 1
            });
            rules.list.push((pattern, group));
        }
        Ok(rules)
    }
}

/// The pattern and the name of a line. Names of C++ have arrows, too (`operator->`): the last one
/// between blanks counts.
fn parts(line: &str) -> Result<(&str, &str), WrongRule> {
    // A line has no blanks at its ends.
    let (pattern, name) = match (line.rsplit_once(ARROW), line) {
        (Some(parts), _) => parts,
        (None, line) if line.starts_with(ARROW.trim_start()) => return Err(WrongRule::NoPattern),
        (None, line) if line.ends_with(ARROW.trim_end()) => return Err(WrongRule::NoName),
        (None, _) => return Err(WrongRule::NoArrow),
    };
    let name = name.trim();
    if name.chars().count() > MOST_LETTERS {
        return Err(WrongRule::LongName);
    }
    if name.chars().any(char::is_control) {
        return Err(WrongRule::Control);
    }
    Ok((pattern.trim(), name))
}

impl Rules {
    /// The group of a name: that of the first rule that matches it.
    fn group(&self, name: &FrameName<'_>) -> Option<u32> {
        self.list.iter().find(|(pattern, _)| pattern.is_match(name)).map(|(_, group)| *group)
    }
}

/// Names the frames of a symbolized profile after the groups of their rules. A group is one
/// function, in no module, and counts as the program's own code; no sample and no time is lost.
pub fn apply_rules(profile: &mut Profile, runs: &mut Runs, rules: &Rules) {
    if rules.list.is_empty() {
        return;
    }
    let groups = for_names(profile, |name| rules.group(name));
    let titles: Vec<StrId> = rules.names.iter().map(|name| profile.symbols.strings.intern(name)).collect();
    let mut grouper = Grouper {
        profile,
        groups: &groups,
        titles: &titles,
        names: &rules.names,
        copy: FrameCopy::new(profile),
        parts: vec![None; profile.frames.keys().len()],
    };
    let mut tree = CallTree::default();
    let mut stacks: Vec<GroupedStack> = Vec::with_capacity(profile.tree.nodes().len());
    for node in profile.tree.nodes() {
        // A parent comes before its children.
        let mut stack = node.parent().map_or(GroupedStack::default(), |parent| stacks[parent.0 as usize]);
        for part in grouper.parts_of(node.frame) {
            if part.group.is_none() || part.group != stack.group {
                stack.node = Some(tree.intern(Node { parent: stack.node, frame: part.frame }));
                stack.group = part.group;
            }
        }
        stacks.push(stack);
    }
    let (frames, symbols) = grouper.copy.finish();
    profile.replace_stacks(frames, symbols, tree);
    runs.map_nodes(stacks.into_iter().map(|stack| stack.node).collect());
}

/// A stack of groups.
#[derive(Clone, Copy, Default)]
struct GroupedStack {
    node: Option<NodeId>,
    /// That of its innermost frame.
    group: Option<u32>,
}

/// A part of a frame: the names of one group, or of none.
#[derive(Clone, Copy)]
struct FramePart {
    frame: FrameId,
    group: Option<u32>,
}

struct Grouper<'a> {
    profile: &'a Profile,
    /// Of each name, parallel to `FrameSymbols::named`.
    groups: &'a [Option<u32>],
    titles: &'a [StrId],
    names: &'a [String],
    copy: FrameCopy<'a>,
    /// By frame, outermost part first.
    parts: Vec<Option<Vec<FramePart>>>,
}

impl Grouper<'_> {
    /// The parts of a frame, outermost first.
    fn parts_of(&mut self, frame: FrameId) -> &[FramePart] {
        let Grouper { profile, groups, titles, names, copy, parts } = self;
        parts[frame.0 as usize].get_or_insert_with(|| {
            let groups = of_frame(groups, profile, frame);
            if groups.iter().all(Option::is_none) {
                return vec![FramePart { frame: copy.frame(frame), group: None }];
            }
            let trust = profile.frames.keys()[frame.0 as usize].trust;
            let mut made = Vec::new();
            // Innermost names come first.
            let mut end = groups.len();
            for part in groups.chunk_by(PartialEq::eq).rev() {
                let begin = end - part.len();
                let group = part.first().copied().flatten();
                let frame = match group {
                    Some(group) => {
                        let at = group as usize;
                        let key = FrameKey { place: place(&names[at]), exact: true, trust };
                        let facts = FrameFacts { kind: FrameKind::Native, ..FrameFacts::default() };
                        copy.placeholder(key, titles[at], facts)
                    }
                    None => copy.part(frame, |name| (begin..end).contains(&name)),
                };
                made.push(FramePart { frame, group });
                end = begin;
            }
            made
        })
    }
}

/// The place of a group, the same in all profiles. Its address is not canonical (its upper
/// 17 bits differ), so no code is there.
fn place(name: &str) -> Placement {
    const BEGIN: u64 = 0x5354 << 48;
    Placement::Unknown(BEGIN | xxh3_64(name.as_bytes()) >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        text.parse::<Rules>().unwrap_err().to_string()
    }

    #[test]
    fn wrong_rule_is_reported_with_its_line() {
        assert_eq!(wrong("# heap\n\nmalloc heap"), "line 3: has no arrow; write PATTERN -> NAME");
        assert_eq!(wrong("a -> b\n-> heap"), "line 2: has no pattern before its arrow");
        assert_eq!(wrong("malloc -> \n"), "line 1: has no name behind its arrow");
        assert_eq!(wrong("a(b -> c"), "line 1: the pattern is not a regular expression: unclosed group");
        assert_eq!(wrong("a -> b\u{1b}[31m"), "line 1: has a control character in its name");
        let long = "x".repeat(MOST_LETTERS + 1);
        assert!(wrong(&format!("a -> {long}")).starts_with("line 1: has a name of more than"));
    }

    #[test]
    fn rules_beyond_the_limit_are_refused() {
        let most = "a -> b\n".repeat(MOST_RULES);
        assert!(most.parse::<Rules>().is_ok());
        assert!(wrong(&format!("{most}a -> b")).starts_with(&format!("line {}: ", MOST_RULES + 1)));
    }

    #[test]
    fn last_arrow_between_blanks_splits_a_rule() {
        assert_eq!(parts("operator-> -> arrow").unwrap(), ("operator->", "arrow"));
        assert_eq!(parts("a -> b  ->  c").unwrap(), ("a -> b", "c"));
    }
}
