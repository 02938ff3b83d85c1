//! BERT, RoBERTa and DistilBERT: one encoder, three sets of names and a few rules.

use tensor::{Activation, AttentionShape};

use crate::config::{EncoderConfig, Family, Head, ModelConfig};
use crate::ops::{
    AddNorm, Attention, EmbedNorm, FeedForward, FirstToken, Linear, LinearParams, MeanPool, NormParams, NormalizeRows,
    RowDropout,
};
use crate::params::{FilePart, Init, ParamDescr, ParamId};
use crate::tape::{Policy, Tape, Value};

/// How a bare encoder makes one embedding of a sequence's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over tokens.
    Mean,
    /// The first token.
    Cls,
    /// None: a row for every token.
    Tokens,
}

/// An encoder with its head, as a recipe: which parameter goes where. The values are [`Weights`](crate::Weights).
#[derive(Clone, Debug)]
pub struct Encoder {
    config: ModelConfig,
    descriptors: Vec<ParamDescr>,
    word: ParamId,
    position: ParamId,
    token_type: Option<ParamId>,
    embedding_norm: NormParams,
    layers: Vec<Layer>,
    head: Vec<LinearParams>,
    /// How embeddings are made, where there is no head.
    pub pooling: Pooling,
    /// Whether embeddings are divided by their length.
    pub normalize: bool,
    /// What each layer's saved tensors become.
    pub policy: Policy,
}

#[derive(Clone, Debug)]
struct Layer {
    qkv: LinearParams,
    attention_out: LinearParams,
    attention_norm: NormParams,
    up: LinearParams,
    down: LinearParams,
    output_norm: NormParams,
}

/// Sites of dropout masks: the layer in the upper bits, the place in it in the lower four.
#[derive(Clone, Copy)]
enum Site {
    Embeddings,
    Attention,
    AttentionOut,
    Output,
    Pooled,
    Classifier,
}

fn site(layer: usize, site: Site) -> u32 {
    (layer as u32) << 4 | site as u32
}

/// Declares parameters one after the other.
struct Declare<'a> {
    encoder: &'a EncoderConfig,
    descriptors: Vec<ParamDescr>,
    root: bool,
}

impl Declare<'_> {
    fn add(&mut self, name: &str, shape: Vec<usize>, init: Init, decay: bool, files: &[String]) -> ParamId {
        let rows = shape[0] / files.len();
        let part = |(i, file): (usize, &String)| FilePart {
            name: file.clone(),
            rows: i * rows..(i + 1) * rows,
            root: self.root,
        };
        let parts = files.iter().enumerate().map(part).collect();
        self.descriptors.push(ParamDescr { name: name.into(), shape, init, decay, parts });
        ParamId(self.descriptors.len() - 1)
    }

    /// A table or matrix, without a bias.
    fn matrix(&mut self, name: &str, shape: [usize; 2], files: &[String]) -> ParamId {
        let init = Init::Normal(self.encoder.initializer_range);
        let files: Vec<String> = files.iter().map(|file| format!("{file}.weight")).collect();
        self.add(&format!("{name}.weight"), shape.into(), init, true, &files)
    }

    fn linear(&mut self, name: &str, shape: [usize; 2], files: &[String]) -> LinearParams {
        let weight = self.matrix(name, shape, files);
        let files: Vec<String> = files.iter().map(|file| format!("{file}.bias")).collect();
        let bias = self.add(&format!("{name}.bias"), vec![shape[0]], Init::Zeros, false, &files);
        LinearParams { weight, bias }
    }

    fn norm(&mut self, name: &str, file: String) -> NormParams {
        let shape = vec![self.encoder.hidden];
        let gamma = self.add(&format!("{name}.weight"), shape.clone(), Init::Ones, false, &[format!("{file}.weight")]);
        let beta = self.add(&format!("{name}.bias"), shape, Init::Zeros, false, &[format!("{file}.bias")]);
        NormParams { gamma, beta, eps: self.encoder.norm_eps }
    }

    fn layer(&mut self, index: usize) -> Layer {
        let (hidden, intermediate) = (self.encoder.hidden, self.encoder.intermediate);
        let distil = self.encoder.family == Family::DistilBert;
        let at = if distil { format!("transformer.layer.{index}") } else { format!("encoder.layer.{index}") };
        let file = |bert: &str, distilbert: &str| format!("{at}.{}", if distil { distilbert } else { bert });
        let qkv = [("query", "q_lin"), ("key", "k_lin"), ("value", "v_lin")]
            .map(|(bert, short)| file(&format!("attention.self.{bert}"), &format!("attention.{short}")));
        let name = |part: &str| format!("layers.{index}.{part}");
        Layer {
            qkv: self.linear(&name("attention.qkv"), [3 * hidden, hidden], &qkv),
            attention_out: self.linear(
                &name("attention.out"),
                [hidden, hidden],
                &[file("attention.output.dense", "attention.out_lin")],
            ),
            attention_norm: self.norm(&name("attention.norm"), file("attention.output.LayerNorm", "sa_layer_norm")),
            up: self.linear(&name("ffn.up"), [intermediate, hidden], &[file("intermediate.dense", "ffn.lin1")]),
            down: self.linear(&name("ffn.down"), [hidden, intermediate], &[file("output.dense", "ffn.lin2")]),
            output_norm: self.norm(&name("ffn.norm"), file("output.LayerNorm", "output_layer_norm")),
        }
    }

    /// The linear layers of the head, in their order.
    fn head(&mut self, head: Head, outputs: usize) -> Vec<LinearParams> {
        let hidden = self.encoder.hidden;
        let file = |name: &str| [name.to_string()];
        let pooler = match (head, self.encoder.family) {
            (Head::Embedding, _) => return Vec::new(),
            (Head::Token, _) => None,
            (Head::Sequence(_), Family::Bert) => Some(self.linear("pooler", [hidden, hidden], &file("pooler.dense"))),
            (Head::Sequence(_), Family::Roberta) => {
                self.root = true;
                Some(self.linear("pooler", [hidden, hidden], &file("classifier.dense")))
            }
            (Head::Sequence(_), Family::DistilBert) => {
                self.root = true;
                Some(self.linear("pooler", [hidden, hidden], &file("pre_classifier")))
            }
        };
        self.root = true;
        let roberta = self.encoder.family == Family::Roberta && head != Head::Token;
        let classifier = file(if roberta { "classifier.out_proj" } else { "classifier" });
        let classifier = self.linear("classifier", [outputs, hidden], &classifier);
        pooler.into_iter().chain([classifier]).collect()
    }
}

impl Encoder {
    /// The recipe for a configuration.
    pub fn new(config: ModelConfig) -> Self {
        let encoder = &config.encoder;
        let mut declare = Declare { encoder, descriptors: Vec::new(), root: false };
        let table = |name: &str| [format!("embeddings.{name}_embeddings")];
        let word = declare.matrix("embeddings.word", [encoder.vocab_size, encoder.hidden], &table("word"));
        let position =
            declare.matrix("embeddings.position", [encoder.max_positions, encoder.hidden], &table("position"));
        let token_type = (encoder.type_vocab > 0)
            .then(|| declare.matrix("embeddings.type", [encoder.type_vocab, encoder.hidden], &table("token_type")));
        let embedding_norm = declare.norm("embeddings.norm", "embeddings.LayerNorm".into());
        let layers = (0..encoder.layers).map(|index| declare.layer(index)).collect();
        let head = declare.head(config.head, config.outputs());
        let descriptors = declare.descriptors;
        Self {
            descriptors,
            word,
            position,
            token_type,
            embedding_norm,
            layers,
            head,
            pooling: Pooling::Mean,
            normalize: true,
            policy: Policy::Keep,
            config,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Overrides the dropout rates of the configuration.
    pub fn set_dropout(&mut self, hidden: Option<f32>, attention: Option<f32>, classifier: Option<f32>) {
        let encoder = &mut self.config.encoder;
        encoder.hidden_dropout = hidden.unwrap_or(encoder.hidden_dropout);
        encoder.attention_dropout = attention.unwrap_or(encoder.attention_dropout);
        encoder.classifier_dropout = classifier.unwrap_or(encoder.classifier_dropout);
    }

    /// All parameters, indexed by [`ParamId`].
    pub fn descriptors(&self) -> &[ParamDescr] {
        &self.descriptors
    }

    /// The prefix of the encoder's names in a file of a model with a head.
    pub fn file_prefix(&self) -> &'static str {
        match self.config.encoder.family {
            Family::Bert => "bert.",
            Family::Roberta => "roberta.",
            Family::DistilBert => "distilbert.",
        }
    }

    /// Matrices that only `linear` reads, which inference may prepack.
    pub fn packable(&self) -> Vec<ParamId> {
        let layers = self.layers.iter().flat_map(|layer| [layer.qkv, layer.attention_out, layer.up, layer.down]);
        layers.chain(self.head.iter().copied()).map(|linear| linear.weight).collect()
    }

    /// Whether the output has a row for every token instead of one for every sequence.
    pub fn is_per_token(&self) -> bool {
        match self.config.head {
            Head::Sequence(_) => false,
            Head::Token => true,
            Head::Embedding => self.pooling == Pooling::Tokens,
        }
    }

    /// Runs the tape's batch: logits `[sequences or tokens, labels]`, or embeddings `[sequences, hidden]`.
    pub fn forward(&self, tape: &mut Tape) -> Value {
        let config = &self.config.encoder;
        tape.enter("embeddings");
        let mut x = tape.run(
            EmbedNorm {
                word: self.word,
                position: self.position,
                token_type: self.token_type,
                norm: self.embedding_norm,
                dropout: config.hidden_dropout,
                site: site(0, Site::Embeddings),
            },
            &[],
        );
        for (index, layer) in self.layers.iter().enumerate() {
            tape.enter(format_args!("layers.{index}"));
            x = tape.segment(self.policy, |tape| self.layer(tape, index, layer, &x));
        }
        tape.enter("head");
        match self.config.head {
            Head::Sequence(_) => self.classify(tape, x),
            Head::Token => {
                let x = self.dropout(tape, x, Site::Classifier, true);
                tape.run(Linear { params: self.head[0], activation: Activation::Identity }, &[&x])
            }
            Head::Embedding => self.embed(tape, x),
        }
    }

    fn layer(&self, tape: &mut Tape, index: usize, layer: &Layer, x: &Value) -> Value {
        let config = &self.config.encoder;
        let shape = AttentionShape {
            query_heads: config.heads,
            key_value_heads: config.heads,
            head_dim: config.hidden / config.heads,
            causal: false,
        };
        let linear = |params| Linear { params, activation: Activation::Identity };
        let add_norm = |norm, at, dropout| AddNorm { norm, dropout, site: site(index, at) };
        // DistilBERT drops nothing between attention and its normalisation.
        let attention_out_dropout = if config.family == Family::DistilBert { 0.0 } else { config.hidden_dropout };

        let qkv = tape.run(linear(layer.qkv), &[x]);
        let dropout = config.attention_dropout;
        let context = tape.run(Attention { shape, dropout, site: site(index, Site::Attention) }, &[&qkv]);
        drop(qkv);
        let attended = tape.run(linear(layer.attention_out), &[&context]);
        drop(context);
        let x = tape.run(add_norm(layer.attention_norm, Site::AttentionOut, attention_out_dropout), &[&attended, x]);
        drop(attended);
        let ffn = FeedForward { up: layer.up, down: layer.down, activation: config.activation };
        let wide = tape.run(ffn, &[&x]);
        tape.run(add_norm(layer.output_norm, Site::Output, config.hidden_dropout), &[&wide, &x])
    }

    fn classify(&self, tape: &mut Tape, x: Value) -> Value {
        let mut x = tape.run(FirstToken, &[&x]);
        drop_before_pooler(self.config.encoder.family).then(|| x = self.dropout(tape, x.clone(), Site::Pooled, false));
        let activation = match self.config.encoder.family {
            Family::Bert | Family::Roberta => Activation::Tanh,
            Family::DistilBert => Activation::Relu,
        };
        let pooled = tape.run(Linear { params: self.head[0], activation }, &[&x]);
        let pooled = self.dropout(tape, pooled, Site::Classifier, false);
        tape.run(Linear { params: self.head[1], activation: Activation::Identity }, &[&pooled])
    }

    fn embed(&self, tape: &mut Tape, x: Value) -> Value {
        let pooled = match self.pooling {
            Pooling::Mean => tape.run(MeanPool, &[&x]),
            Pooling::Cls => tape.run(FirstToken, &[&x]),
            Pooling::Tokens => x,
        };
        if self.normalize { tape.run(NormalizeRows, &[&pooled]) } else { pooled }
    }

    fn dropout(&self, tape: &mut Tape, x: Value, at: Site, per_token: bool) -> Value {
        let dropout = self.config.encoder.classifier_dropout;
        if dropout == 0.0 || tape.pass().randomness.is_none() {
            return x;
        }
        tape.run(RowDropout { dropout, site: site(self.layers.len(), at), per_token }, &[&x])
    }
}

/// RoBERTa's head drops before both of its linear layers, the others only before the classifier.
fn drop_before_pooler(family: Family) -> bool {
    family == Family::Roberta
}
