//! An image of few colours, as PNG: thousands of cells take fewer bytes than as shapes.

use std::io::{self, Write};

use flate2::{Compression, Crc, write::ZlibEncoder};

use super::embed::base64;

/// An image whose pixels have numbers of colours, from the top. Number 0 is transparent.
pub struct Pixels {
    width: usize,
    height: usize,
    colors: Vec<u8>,
}

impl Pixels {
    /// A transparent image.
    pub fn new(width: usize, height: usize) -> Self {
        Pixels {
            width,
            height,
            colors: vec![0; width * height],
        }
    }

    /// Gives a pixel a colour; nothing happens outside of the image.
    pub fn set(&mut self, x: usize, y: usize, color: u8) {
        if let (true, Some(pixel)) = (x < self.width, self.colors.get_mut(y * self.width + x)) {
            *pixel = color;
        }
    }

    /// As the address of an image that is in the address itself. `palette` has the colours from number
    /// 1 on, as `#rrggbb`.
    pub fn address(&self, palette: &[&str]) -> String {
        // Writing to memory cannot fail.
        let png = self.png(palette).unwrap_or_default();
        format!("data:image/png;base64,{}", base64(&png))
    }

    fn png(&self, palette: &[&str]) -> io::Result<Vec<u8>> {
        let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut head = Vec::new();
        for side in [self.width, self.height] {
            head.extend((side as u32).to_be_bytes());
        }
        // Eight bits a pixel, which are numbers of colours.
        head.extend([8, 3, 0, 0, 0]);
        chunk(&mut png, b"IHDR", &head);
        let mut colors = vec![0; 3];
        for color in palette {
            let number = u32::from_str_radix(color.trim_start_matches('#'), 16).unwrap_or(0);
            colors.extend(&number.to_be_bytes()[1..]);
        }
        chunk(&mut png, b"PLTE", &colors);
        chunk(&mut png, b"tRNS", &[0]);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        for row in self.colors.chunks(self.width.max(1)) {
            // No filter.
            zlib.write_all(&[0])?;
            zlib.write_all(row)?;
        }
        chunk(&mut png, b"IDAT", &zlib.finish()?);
        chunk(&mut png, b"IEND", &[]);
        Ok(png)
    }
}

fn chunk(png: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    png.extend((data.len() as u32).to_be_bytes());
    png.extend(name);
    png.extend(data);
    let mut sum = Crc::new();
    sum.update(name);
    sum.update(data);
    png.extend(sum.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn an_image_has_its_pixels() {
        let mut image = Pixels::new(3, 2);
        image.set(2, 1, 2);
        image.set(3, 0, 9);
        let png = image.png(&["#102030", "#ffffff"]).expect("written");
        let at = |name: &[u8]| png.windows(4).position(|w| w == name).expect("a chunk");
        assert_eq!(
            png[at(b"PLTE") + 4..][..9],
            [0, 0, 0, 16, 32, 48, 255, 255, 255]
        );
        // "IEND" has this sum in each PNG.
        assert_eq!(png[png.len() - 4..], [0xae, 0x42, 0x60, 0x82]);
        let mut pixels = Vec::new();
        let mut data = flate2::read::ZlibDecoder::new(&png[at(b"IDAT") + 4..]);
        data.read_to_end(&mut pixels).expect("unpacked");
        assert_eq!(pixels, [0, 0, 0, 0, 0, 0, 0, 2]);
    }
}
