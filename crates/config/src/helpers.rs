//! How many threads help a rank with long calls.

use crate::error::Error;
use crate::parse;
use crate::reader::Reader;

const MOST: usize = 64;

/// The number that is set; `None` for as many as are spare.
pub(crate) fn helpers(reader: &mut Reader<'_>) -> Result<Option<usize>, Error> {
    let expected = format!("auto, or a number from 0 to {MOST}");
    let helpers = reader.parsed(&["SPARK_CCL_HELPERS"], &expected, |text| match text {
        "auto" => Some(None),
        text => parse::number(text).filter(|&count| count <= MOST).map(Some),
    })?;
    Ok(helpers.flatten())
}
