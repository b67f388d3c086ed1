//! The format of `kernels/build.sh`'s packs: one kernel source, compiled for several GPUs. Pure
//! functions of bytes.

use std::fmt;

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// A compute capability: major and minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Capability(pub(crate) u32, pub(crate) u32);

/// A compiled source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image<'a> {
    is_ptx: bool,
    target: Capability,
    len: usize,
    packed: &'a [u8],
}

/// The images in a pack; `None` if it is damaged.
pub(crate) fn images(mut pack: &[u8]) -> Option<Vec<Image<'_>>> {
    let mut images = Vec::new();
    while !pack.is_empty() {
        let ([is_ptx, target, len, packed], rest) = header(pack)?;
        let (packed, rest) = rest.split_at_checked(packed as usize)?;
        images.push(Image {
            is_ptx: is_ptx != 0,
            target: Capability(target / 10, target % 10),
            len: len as usize,
            packed,
        });
        pack = rest;
    }
    Some(images)
}

fn header(pack: &[u8]) -> Option<([u32; 4], &[u8])> {
    let (bytes, rest) = pack.split_first_chunk::<16>()?;
    let (numbers, _) = bytes.as_chunks::<4>();
    let mut header = [0; 4];
    for (number, bytes) in header.iter_mut().zip(numbers) {
        *number = u32::from_le_bytes(*bytes);
    }
    Some((header, rest))
}

/// The image for a device: the cubin for the closest capability that the device runs, or else the
/// PTX for the latest capability that it supports.
pub(crate) fn choose<'a>(images: &[Image<'a>], device: Capability) -> Option<Image<'a>> {
    let runs = images.iter().filter(|image| image.runs_on(device));
    runs.max_by_key(|image| (!image.is_ptx, image.target))
        .copied()
}

impl Image<'_> {
    fn runs_on(&self, device: Capability) -> bool {
        self.target <= device && (self.is_ptx || self.target.0 == device.0)
    }

    /// The image in the form that the driver takes; `None` if it is damaged.
    pub(crate) fn unpack(&self) -> Option<Vec<u8>> {
        let image = decompress_to_vec_zlib_with_limit(self.packed, self.len).ok()?;
        (image.len() == self.len).then_some(image)
    }
}

impl fmt::Display for Image<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_ptx { "compute" } else { "sm" };
        let Capability(major, minor) = self.target;
        write!(f, "{kind}_{major}{minor}")
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use miniz_oxide::deflate::compress_to_vec_zlib;

    use super::*;

    /// Packs images, each with whether it is PTX, and its target.
    pub(crate) fn pack(images: &[(bool, u32, &[u8])]) -> Vec<u8> {
        let mut pack = Vec::new();
        for &(is_ptx, target, image) in images {
            let packed = compress_to_vec_zlib(image, 6);
            for number in [
                u32::from(is_ptx),
                target,
                image.len() as u32,
                packed.len() as u32,
            ] {
                pack.extend(number.to_le_bytes());
            }
            pack.extend(packed);
        }
        pack
    }

    #[test]
    fn devices_get_the_closest_image_that_they_run() {
        let pack = pack(&[
            (true, 80, b""),
            (false, 80, b""),
            (false, 86, b""),
            (false, 90, b"of 9.0"),
            (false, 120, b""),
            (true, 75, b""),
        ]);
        let images = images(&pack).unwrap();
        let chosen = |major, minor| {
            let image = choose(&images, Capability(major, minor));
            image.map(|image| image.to_string())
        };
        for (capability, image) in [
            ((8, 0), "sm_80"),
            ((8, 5), "sm_80"),
            ((8, 9), "sm_86"),
            ((9, 0), "sm_90"),
            ((12, 1), "sm_120"),
            ((10, 0), "compute_80"),
            ((11, 0), "compute_80"),
            ((7, 5), "compute_75"),
        ] {
            assert_eq!(chosen(capability.0, capability.1).as_deref(), Some(image));
        }
        assert_eq!(chosen(7, 0), None);
        let image = choose(&images, Capability(9, 0)).unwrap();
        assert_eq!(image.unpack().unwrap(), b"of 9.0");
    }

    #[test]
    fn damaged_packs_are_no_images() {
        let whole = pack(&[(false, 90, b"of 9.0")]);
        assert!(images(&[]).unwrap().is_empty());
        for len in 1..whole.len() {
            assert!(images(&whole[..len]).is_none(), "{len}");
        }
        let mut other_length = whole.clone();
        other_length[8] += 1;
        let mut other_data = whole;
        *other_data.last_mut().unwrap() ^= 1;
        for pack in [other_length, other_data] {
            let images = images(&pack).unwrap();
            assert_eq!(images[0].unpack(), None);
        }
    }
}
