//! A small model for the examples, of numbers that are always the same.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};

const TOKENS: usize = 512;
const HIDDEN: usize = 128;
const INNER: usize = 256;
const BLOCKS: usize = 4;
const HEADS: usize = 8;
const KEYS: usize = 4;

/// Writes a folder of Hugging Face's shape.
pub(crate) fn make(folder: &Path) -> candle_core::Result<()> {
    let config = format!(
        "{{\"model_type\": \"llama\", \"vocab_size\": {TOKENS}, \"hidden_size\": {HIDDEN}, \
         \"intermediate_size\": {INNER}, \"num_hidden_layers\": {BLOCKS}, \
         \"num_attention_heads\": {HEADS}, \"num_key_value_heads\": {KEYS}, \
         \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0}}"
    );
    std::fs::write(folder.join("config.json"), config)?;
    let keys = HIDDEN / HEADS * KEYS;
    let mut tensors = HashMap::new();
    let mut numbers = Numbers(1);
    let mut add = |name: String, rows: usize, columns: usize| {
        let tensor = numbers.matrix(rows, columns)?;
        tensors.insert(name, tensor);
        candle_core::Result::Ok(())
    };
    add("model.embed_tokens.weight".to_owned(), TOKENS, HIDDEN)?;
    for block in 0..BLOCKS {
        for (name, rows, columns) in [
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", keys, HIDDEN),
            ("self_attn.v_proj", keys, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", INNER, HIDDEN),
            ("mlp.up_proj", INNER, HIDDEN),
            ("mlp.down_proj", HIDDEN, INNER),
        ] {
            add(format!("model.layers.{block}.{name}.weight"), rows, columns)?;
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            add(format!("model.layers.{block}.{name}.weight"), 1, HIDDEN)?;
        }
    }
    add("model.norm.weight".to_owned(), 1, HIDDEN)?;
    add("lm_head.weight".to_owned(), TOKENS, HIDDEN)?;
    candle_core::safetensors::save(&tensors, folder.join("model.safetensors"))
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    /// From -1 to 1.
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Weights of which sums are about as large as what they multiply; of one row, those of a norm.
    fn matrix(&mut self, rows: usize, columns: usize) -> candle_core::Result<Tensor> {
        let (shape, size, middle) = match rows {
            1 => (vec![columns], 0.1, 1.0),
            _ => (vec![rows, columns], (3.0 / columns as f32).sqrt(), 0.0),
        };
        let values = (0..rows * columns).map(|_| middle + size * self.next());
        Tensor::from_vec(values.collect::<Vec<_>>(), shape, &Device::Cpu)
    }
}
