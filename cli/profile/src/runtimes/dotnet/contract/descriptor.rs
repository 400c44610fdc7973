//! Data descriptors: the layout of the types of one build of the runtime, as the runtime itself
//! publishes it.
//!
//! The compact JSON of version 0: `types` as `{"Thread": {"Frame": 8, "LinkNext": [120, "pointer"],
//! "!": 600}}`, `globals` as `value`, `[value, type]`, `[index]` or `[[index], type]`. An index
//! refers to the table of pointers that was recorded beside the JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use stk_schema::Arch;

/// Largest descriptor that is read, in bytes (that of .NET 10 has 20 KB).
const MAX_JSON: usize = 1 << 20;

/// A runtime's description of its data structures.
#[derive(Debug, Clone)]
pub struct Descriptor {
    arch: Arch,
    types: BTreeMap<String, TypeInfo>,
    globals: BTreeMap<String, Global>,
    contracts: BTreeMap<String, u32>,
}

/// The layout of one type.
#[derive(Debug, Clone, Default)]
pub struct TypeInfo {
    /// Its size in bytes, if the runtime states one.
    pub size: Option<u64>,
    fields: BTreeMap<String, u64>,
}

impl TypeInfo {
    /// Offset of a field in bytes.
    pub fn field(&self, name: &str) -> Option<u64> {
        self.fields.get(name).copied()
    }

    /// Every field with its offset in bytes, by name.
    pub fn fields(&self) -> impl Iterator<Item = (&str, u64)> {
        self.fields.iter().map(|(name, offset)| (name.as_str(), *offset))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Global {
    Number(u64),
    Text(String),
}

/// Why a descriptor cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// It is longer than a megabyte.
    #[error("the data descriptor has {0} bytes; at most {MAX_JSON} are read")]
    TooLong(usize),
    /// It is not JSON of the form that the format prescribes.
    #[error("the data descriptor is malformed: {0}")]
    Malformed(String),
    /// Its version is not 0.
    #[error("the data descriptor has version {0}; only version 0 is known")]
    Version(u64),
    /// It builds on a published descriptor. Only the empty one is known.
    #[error("the data descriptor builds on the baseline \"{0}\"; only \"empty\" is known")]
    Baseline(String),
    /// It is of an architecture that is not supported.
    #[error("the runtime's architecture is {0}: only x64, arm64 and x86 are read")]
    Architecture(String),
    /// It states another architecture than the trace.
    #[error("the data descriptor says {stated}, the trace says otherwise")]
    OtherArchitecture {
        /// The architecture that the descriptor states.
        stated: String,
    },
    /// The runtime implements another version of a contract than this module.
    #[error("the runtime has version {found} of the contract {name}; only version {known} is known")]
    Contract {
        /// Name of the contract.
        name: &'static str,
        /// Version that the runtime states.
        found: u32,
        /// Version that is implemented.
        known: u32,
    },
}

impl Descriptor {
    /// Reads a recorded descriptor: its JSON, and the table of pointers of 8 little-endian bytes
    /// each.
    ///
    /// # Errors
    ///
    /// See [`DescriptorError`]. A global whose index is beyond the table is left out.
    pub fn parse(arch: Arch, json: &[u8], pointer_data: &[u8]) -> Result<Descriptor, DescriptorError> {
        if json.len() > MAX_JSON {
            return Err(DescriptorError::TooLong(json.len()));
        }
        let malformed = |what: &str| DescriptorError::Malformed(what.to_owned());
        let root: Value =
            serde_json::from_slice(json).map_err(|error| DescriptorError::Malformed(error.to_string()))?;
        let root = root.as_object().ok_or_else(|| malformed("not an object"))?;
        match root.get("version").and_then(number) {
            Some(0) => {}
            Some(version) => return Err(DescriptorError::Version(version)),
            None => return Err(malformed("no version")),
        }
        for baseline in baselines(root) {
            if baseline != "empty" {
                return Err(DescriptorError::Baseline(baseline.to_owned()));
            }
        }
        let pointers: Vec<u64> = pointer_data
            .chunks_exact(8)
            .map(|bytes| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
            .collect();
        let object = |name: &str| root.get(name).and_then(Value::as_object).into_iter().flatten();
        let mut types = BTreeMap::new();
        for (name, value) in object("types") {
            let fields = value.as_object().ok_or_else(|| malformed(&format!("type {name}")))?;
            types.insert(name.clone(), type_info(name, fields)?);
        }
        let globals = object("globals")
            .filter_map(|(name, value)| Some((name.clone(), global(value, &pointers)?)))
            .collect();
        let contracts =
            object("contracts").filter_map(|(name, value)| Some((name.clone(), version(value)?))).collect();
        let descriptor = Descriptor { arch, types, globals, contracts };
        descriptor.check_architecture()?;
        descriptor.check_contract("StackWalk", 1)?;
        descriptor.check_contract("Thread", 1)?;
        Ok(descriptor)
    }

    fn check_architecture(&self) -> Result<(), DescriptorError> {
        let Some(stated) = self.text("Architecture") else { return Ok(()) };
        let known = match stated {
            "x64" => Arch::X64,
            "arm64" => Arch::Arm64,
            "x86" => Arch::X86,
            _ => return Err(DescriptorError::Architecture(stated.to_owned())),
        };
        if known == self.arch {
            Ok(())
        } else {
            Err(DescriptorError::OtherArchitecture { stated: stated.to_owned() })
        }
    }

    fn check_contract(&self, name: &'static str, known: u32) -> Result<(), DescriptorError> {
        match self.contracts.get(name) {
            Some(&found) if found != known => Err(DescriptorError::Contract { name, found, known }),
            _ => Ok(()),
        }
    }

    /// The architecture of the runtime that it describes.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Bytes of a pointer.
    pub fn pointer_size(&self) -> u64 {
        if self.arch == Arch::X86 { 4 } else { 8 }
    }

    /// The layout of a type.
    pub fn type_info(&self, name: &str) -> Option<&TypeInfo> {
        self.types.get(name)
    }

    /// Offset of a field in bytes.
    pub fn offset(&self, type_name: &str, field: &str) -> Option<u64> {
        self.types.get(type_name)?.field(field)
    }

    /// Size of a type in bytes.
    pub fn size(&self, type_name: &str) -> Option<u64> {
        self.types.get(type_name)?.size
    }

    /// A global that is a number or an address.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.globals.get(name)? {
            Global::Number(value) => Some(*value),
            Global::Text(_) => None,
        }
    }

    /// A global that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.globals.get(name)? {
            Global::Text(text) => Some(text),
            Global::Number(_) => None,
        }
    }

    /// The version of a contract that the runtime states.
    pub fn contract(&self, name: &str) -> Option<u32> {
        self.contracts.get(name).copied()
    }
}

fn baselines(root: &Map<String, Value>) -> Vec<&str> {
    match root.get("baseline") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn type_info(name: &str, fields: &Map<String, Value>) -> Result<TypeInfo, DescriptorError> {
    let mut info = TypeInfo::default();
    for (field, value) in fields {
        // An offset, or an offset and the name of the field's type.
        let value = value.as_array().and_then(|pair| pair.first()).unwrap_or(value);
        let Some(offset) = number(value) else {
            return Err(DescriptorError::Malformed(format!("field {name}.{field}")));
        };
        match field.as_str() {
            "!" => info.size = Some(offset),
            _ => _ = info.fields.insert(field.clone(), offset),
        }
    }
    Ok(info)
}

fn global(value: &Value, pointers: &[u64]) -> Option<Global> {
    let direct = |value: &Value| match (number(value), value) {
        (Some(value), _) => Some(Global::Number(value)),
        (None, Value::String(text)) => Some(Global::Text(text.clone())),
        _ => None,
    };
    let indirect = |index: &Value| {
        let index = usize::try_from(number(index)?).ok()?;
        pointers.get(index).copied().map(Global::Number)
    };
    match value.as_array().map(Vec::as_slice) {
        None => direct(value),
        Some([index]) => indirect(index),
        Some([Value::Array(index), _type]) => indirect(index.first()?),
        Some([text @ Value::String(_), Value::String(kind)]) if kind == "string" => {
            text.as_str().map(|text| Global::Text(text.to_owned()))
        }
        Some([value, _type]) => direct(value),
        Some(_) => None,
    }
}

/// A JSON number, or a text with a decimal or hexadecimal number. A negative number becomes its
/// 64-bit pattern.
fn number(value: &Value) -> Option<u64> {
    if let Some(number) = value.as_u64() {
        return Some(number);
    }
    if let Some(number) = value.as_i64() {
        return Some(number.cast_unsigned());
    }
    let text = value.as_str()?;
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let magnitude = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { magnitude.wrapping_neg() } else { magnitude })
}

/// A contract's version: 1 or "c1".
fn version(value: &Value) -> Option<u32> {
    let number = match value.as_str().and_then(|text| text.strip_prefix('c')) {
        Some(digits) => digits.parse().ok()?,
        None => number(value)?,
    };
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Descriptor, DescriptorError> {
        Descriptor::parse(Arch::X64, json.as_bytes(), &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0])
    }

    #[test]
    fn every_form_of_field_global_and_contract() {
        let descriptor = parse(
            r#"{"version":0,"baseline":"empty",
                "types":{"A":{"X":8,"Y":[16,"pointer"],"!":24},"B":{}},
                "globals":{"N":5,"H":["0x1f","uint32"],"S":["0x5","string"],"T":["windows","string"],
                           "I":[1],"J":[[1],"pointer"],"OUT":[[9],"pointer"],"M":["-1","int64"]},
                "contracts":{"StackWalk":"c1","Thread":1,"Loader":"7"}}"#,
        )
        .unwrap();
        assert_eq!(descriptor.offset("A", "X"), Some(8));
        assert_eq!(descriptor.offset("A", "Y"), Some(16));
        assert_eq!(descriptor.size("A"), Some(24));
        assert_eq!(descriptor.size("B"), None);
        assert_eq!(descriptor.number("N"), Some(5));
        assert_eq!(descriptor.number("H"), Some(0x1f));
        assert_eq!(descriptor.text("S"), Some("0x5"));
        assert_eq!(descriptor.text("T"), Some("windows"));
        assert_eq!(descriptor.number("I"), Some(0x1000));
        assert_eq!(descriptor.number("J"), Some(0x1000));
        assert_eq!(descriptor.number("OUT"), None);
        assert_eq!(descriptor.number("M"), Some(u64::MAX));
        assert_eq!(descriptor.contract("StackWalk"), Some(1));
        assert_eq!(descriptor.contract("Loader"), Some(7));
    }

    #[test]
    fn unknown_versions_baselines_and_architectures_are_refused_by_name() {
        assert_eq!(parse(r#"{"version":1}"#).unwrap_err(), DescriptorError::Version(1));
        assert_eq!(
            parse(r#"{"version":0,"baseline":"net9"}"#).unwrap_err(),
            DescriptorError::Baseline("net9".into())
        );
        assert_eq!(
            parse(r#"{"version":0,"globals":{"Architecture":["arm","string"]}}"#).unwrap_err(),
            DescriptorError::Architecture("arm".into())
        );
        assert_eq!(
            parse(r#"{"version":0,"globals":{"Architecture":["arm64","string"]}}"#).unwrap_err(),
            DescriptorError::OtherArchitecture { stated: "arm64".into() }
        );
        assert_eq!(
            parse(r#"{"version":0,"contracts":{"StackWalk":2}}"#).unwrap_err(),
            DescriptorError::Contract { name: "StackWalk", found: 2, known: 1 }
        );
        for bad in
            ["", "[]", "{}", r#"{"version":0,"types":{"A":3}}"#, r#"{"version":0,"types":{"A":{"X":"y"}}}"#]
        {
            assert!(matches!(parse(bad), Err(DescriptorError::Malformed(_))), "{bad}");
        }
        let deep = format!("{{\"version\":0,\"types\":{}", "[".repeat(100_000));
        assert!(matches!(parse(&deep), Err(DescriptorError::Malformed(_))));
        assert!(matches!(parse(&" ".repeat(MAX_JSON + 1)), Err(DescriptorError::TooLong(_))));
    }
}
