// One or two sentences on what a model is, from /v1/models.

const count = (value) => (value >= 1e9 ? `${(value / 1e9).toFixed(1)} billion` : value >= 1e6 ? `${(value / 1e6).toFixed(1)} million` : value.toLocaleString("en"));

export function attentionName({ kind, p }) {
  const name = { lssar: "LSSAR" }[kind] ?? kind;
  return p === null ? name : `${name} (p = ${p})`;
}

export function about(model) {
  const what = model.has_chat_template ? "It continues texts and, by its chat template, answers messages." : "It continues texts: it has no chat template.";
  return `${model.id} is a language model of ${count(model.num_parameters)} parameters: ${model.num_hidden_layers} layers of ` +
    `${model.num_attention_heads} heads with ${attentionName(model.attention)} attention, trained on texts of ` +
    `${model.max_position_embeddings.toLocaleString("en")} tokens, served up to ${model.max_model_len.toLocaleString("en")} ` +
    `(${model.dtype} on ${model.device}). ${what}`;
}
