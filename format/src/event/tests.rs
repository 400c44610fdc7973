//! The tables of `bodies.rs` against SPEC.md.

use super::bodies::{EVENTS, IDENTITIES, TABLE};
use stk_schema::event::kind;

const SPEC: &str = include_str!("../../SPEC.md");

/// A field by its name and its codec.
type Field = (&'static str, &'static str);

/// Fields that SPEC.md words differently, with its words.
const OTHERWISE: [Field; 7] = [
    ("created", "creation time"),
    ("rate_mhz", "rate, millihertz"),
    ("total", "its length"),
    ("time_date_stamp", "TimeDateStamp"),
    ("size_of_image", "SizeOfImage"),
    ("check_sum", "CheckSum"),
    ("pdb_name", "PDB name"),
];

/// The rows of section 5's table: type, name, body without what is in parentheses.
fn rows() -> impl Iterator<Item = (u64, &'static str, String)> {
    let section = SPEC.split("\n## ").find(|section| section.starts_with("5. Events")).unwrap();
    section.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        let kind = cells.next()?.parse().ok()?;
        Some((kind, cells.next()?, without_parentheses(cells.next()?)))
    })
}

fn without_parentheses(text: &str) -> String {
    let mut depth = 0;
    let keep = |c: &char| {
        depth += i32::from(*c == '(');
        let outside = depth == 0;
        depth -= i32::from(*c == ')');
        outside
    };
    text.chars().filter(keep).collect()
}

/// Whether SPEC.md's `text` describes this field.
fn describes(text: &str, (name, codec): Field) -> bool {
    let stored = match codec {
        "Varint" => "varint",
        "Time" => "time",
        "Span" => "span",
        "Signed" => "signed",
        "Name" | "Bytes" | "Piece" => "bytes",
        "Hash" => "hash",
        "Uuid" => "16 bytes",
        "U32" => "u32",
        "List" => "varint count",
        "Remainder" => "the rest",
        _ => panic!("no word of SPEC.md for {codec}"),
    };
    let text = text.trim().to_lowercase();
    let otherwise = OTHERWISE.iter().find(|(field, _)| *field == name);
    let named = match otherwise {
        Some((_, words)) => text.contains(&words.to_lowercase()),
        None => name.split('_').all(|word| text.contains(word)),
    };
    text.starts_with(stored) && named
}

fn assert_described(what: &str, texts: &[&str], fields: &[Field]) {
    assert_eq!(texts.len(), fields.len(), "{what}: {texts:?} {fields:?}");
    for (text, &field) in texts.iter().zip(fields) {
        assert!(describes(text, field), "{what}: {text:?} is not {field:?}");
    }
}

#[test]
fn every_event_has_the_fields_that_the_specification_names() {
    let elsewhere = [kind::SLOT, kind::SAMPLE, kind::INDEX];
    let mut described = 0;
    for (kind, name, body) in rows().filter(|(kind, ..)| !elsewhere.contains(kind)) {
        let (_, ours, fields) = EVENTS.iter().find(|(ours, ..)| *ours == kind).expect(name);
        assert_eq!(*ours, name);
        assert_described(name, &body.split(';').collect::<Vec<_>>(), fields);
        described += 1;
    }
    assert_eq!(described + 1, EVENTS.len(), "all but INDEX");
}

#[test]
fn tables_and_identities_have_the_fields_that_the_specification_names() {
    let (.., tables) = rows().find(|(kind, ..)| *kind == kind::MODULE_TABLES).unwrap();
    let (_, table) = tables.split_once("each:").unwrap();
    assert_described("MODULE_TABLES", &table.split(',').collect::<Vec<_>>(), TABLE);

    let text = SPEC.split("**Identities**, by tag: ").nth(1).unwrap().replace('\n', " ");
    let sentences: Vec<&str> = text.split(". ").collect();
    for (tag, name, fields) in &IDENTITIES[..2] {
        let at = sentences.iter().position(|sentence| sentence.starts_with(&tag.to_string())).expect(name);
        let (_, body) = sentences[at].split_once(": ").unwrap();
        assert_described(name, &body.split(',').collect::<Vec<_>>(), fields);
    }
}
