//! A distinct image: its names and identities.

/// Index of an image among the distinct images of a trace, in its timeline and in its profile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ImageId(pub u32);

/// A distinct image: its names and identities.
#[derive(Clone, Default, Debug)]
pub struct Image {
    /// Full path as recorded (Windows syntax).
    pub path: String,
    /// Last component of `path`, or of the PDB's name.
    pub name: String,
    /// GUID and age as symbol servers write them (32 hex digits upper case + age in hex); empty if
    /// none.
    pub debug_id: String,
    /// TimeDateStamp (8 hex digits upper case) + SizeOfImage (hex lower case) as symbol servers
    /// write them; empty if none.
    pub code_id: String,
    /// PDB file name as the image gives it; empty if none.
    pub pdb_name: String,
    /// CodeView GUID as stored, and age.
    pub code_view: Option<([u8; 16], u32)>,
    pub time_date_stamp: u32,
    /// SizeOfImage, in bytes.
    pub size: u32,
    /// Stable hash of the identity: CodeView if there is one, else code id and header hash; input
    /// of `location_id`.
    pub identity_hash: u64,
}

impl Image {
    /// Whether the trace says which image it was: its headers were recorded.
    pub fn is_identified(&self) -> bool {
        !self.code_id.is_empty()
    }
}
