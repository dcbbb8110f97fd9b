-- The meta block of a trioserve frame: TLVs. trioserve.lua loads this file, registers its fields and calls it.
--
-- A value with a fixed layout is a row of LAYOUTS; the few others have a function below.

return function(tables, malformed)
  local TAGS, DTYPES = tables.TAGS, tables.DTYPES

  local f = {
    tlv = ProtoField.bytes("trioserve.tlv", "TLV"),
    tag = ProtoField.uint16("trioserve.tlv.tag", "Tag", base.DEC, TAGS, 0x7fff),
    ignorable = ProtoField.bool("trioserve.tlv.ignorable", "Ignorable if unknown", 16, nil, 0x8000),
    tlv_flags = ProtoField.uint16("trioserve.tlv.flags", "Flags", base.HEX),
    tlv_length = ProtoField.uint32("trioserve.tlv.length", "Length in bytes"),
    tlv_value = ProtoField.bytes("trioserve.tlv.value", "Value"),
    tlv_text = ProtoField.string("trioserve.tlv.text", "Value"),
    version = ProtoField.uint32("trioserve.model_version", "Model version (0: the newest)"),
    output = ProtoField.uint16("trioserve.output", "Wanted output"),
    dim = ProtoField.int32("trioserve.tensor.dim", "Dimension"),
    name = ProtoField.string("trioserve.tensor.name", "Name"),
    dtype = ProtoField.uint8("trioserve.tensor.dtype", "Datatype", base.DEC, DTYPES),
    ndim = ProtoField.uint8("trioserve.tensor.ndim", "Dimensions"),
    name_length = ProtoField.uint16("trioserve.tensor.name_length", "Length of the name"),
    server_name = ProtoField.string("trioserve.server.name", "Server name"),
  }

  -- One row of a layout: size in bytes, abbreviation, label, and for some a value table or "hex".
  local function layout(prefix, rows)
    for index, row in ipairs(rows) do
      local size, abbreviation, label, values = table.unpack(row)
      local make = ({ [2] = ProtoField.uint16, [4] = ProtoField.uint32, [8] = ProtoField.uint64 })[size]
      local shown = values == "hex" and base.HEX or base.DEC
      if label then
        f[prefix .. index] = make("trioserve." .. prefix .. "." .. abbreviation, label, shown,
          type(values) == "table" and values or nil)
      end
    end
    return { prefix = prefix, rows = rows }
  end

  local LAYOUTS = {
    SHMREF = layout("shmref", { { 4, "region", "Region" }, { 2, "tensor", "Tensor" },
      { 2, "flags", "Flags (1: an output)", "hex" }, { 8, "offset", "Offset in bytes" },
      { 8, "nbytes", "Length in bytes" } }),
    SEQ_ID = layout("sequence", { { 8, "id", "Sequence" }, { 4, "flags", "Flags (1: start, 2: end)", "hex" }, { 4 } }),
    COMPRESS = layout("compress", { { 2, "codec", "Codec", tables.CODECS }, { 2 }, { 4 },
      { 8, "raw_nbytes", "Length in bytes before compression" } }),
    FEATURES = layout("features", { { 8, "must", "Must", "hex" }, { 8, "may", "May", "hex" } }),
    LIMITS = layout("limits", { { 4, "max_frame_nbytes", "Largest body in bytes" },
      { 4, "max_meta_nbytes", "Largest meta in bytes" }, { 4, "window_requests", "Window in requests" },
      { 4, "window_kib", "Window in KiB" }, { 4, "max_tensors", "Tensors" }, { 4, "max_binds", "Bound handles" },
      { 4, "max_bytes_elements", "Elements of a BYTES tensor" }, { 4, "control_per_s", "Control frames a second" } }),
    SERVER = layout("server", { { 8, "id", "Server id", "hex" }, { 8, "epoch", "Epoch" } }),
    -- Times on the server's monotonic clock, 0 = did not happen.
    TIMING = layout("timing", { { 8, "received_ns", "Received, ns" }, { 8, "parsed_ns", "Parsed, ns" },
      { 8, "tokenized_ns", "Tokenized, ns" }, { 8, "ready_ns", "Ready, ns" }, { 8, "batched_ns", "Batched, ns" },
      { 8, "input_copied_ns", "Input copied, ns" }, { 8, "run_ns", "Run, ns" },
      { 8, "output_copied_ns", "Output copied, ns" }, { 8, "sent_ns", "Sent, ns" },
      { 8, "predicted_finish_ns", "Predicted finish, ns" }, { 8, "finished_ns", "Finished, ns" },
      { 8, "batch_id", "Batch" }, { 4, "batch_rows", "Rows of the batch" }, { 4, "padding", "Padding of the batch" },
      { 2, "cut_reason", "Cut because", tables.CUT_REASONS } }),
  }
  local TENSOR = layout("tensor", { { 2, "index", "Index (65535: by name)" }, { 4, "flags", "Flags", "hex" },
    { 8, "nbytes", "Length in bytes" } })
  local SIGNATURE = layout("signature", { { 4, "version", "Model version" }, { 2, "max_rows", "Most rows of a request" },
    { 2, "inputs", "Inputs" }, { 2, "outputs", "Outputs" } })

  -- Adds the fields of a layout and returns the offset behind them. A value that is too short shows what is there.
  local function add_layout(rows_of, value, tree, at)
    for index, row in ipairs(rows_of.rows) do
      local size = row[1]
      if at + size > value:len() then
        tree:add_tvb_expert_info(malformed, value, "Value is shorter than its layout")
        return value:len()
      end
      local field = f[rows_of.prefix .. index]
      if field then tree:add_le(field, value(at, size)) end
      at = at + size
    end
    return at
  end

  -- Adds `ndim` dimensions and returns the shape as text, or nil if the value ends before.
  local function add_dims(value, tree, at, ndim)
    if at + 4 * ndim > value:len() then
      tree:add_tvb_expert_info(malformed, value, "Value ends inside the dimensions")
      return nil
    end
    local dims = {}
    for axis = 0, ndim - 1 do
      tree:add_le(f.dim, value(at + 4 * axis, 4))
      dims[#dims + 1] = tostring(value(at + 4 * axis, 4):le_int())
    end
    return "[" .. table.concat(dims, ",") .. "]"
  end

  local function add_text(field, range, tree)
    local text = range:string(ENC_UTF_8)
    tree:add(field, range, text)
    return text
  end

  local function text(value, tree) return add_text(f.tlv_text, value, tree) end

  local function tensor(value, tree)
    tree:add(f.dtype, value(0, 1))
    local ndim = value:len() > 1 and value(1, 1):uint() or 0
    if value:len() > 1 then tree:add(f.ndim, value(1, 1)) end
    local at = add_layout(TENSOR, value, tree, math.min(2, value:len()))
    local shape = add_dims(value, tree, at, ndim)
    if shape == nil then return "" end
    local label = (DTYPES[value(0, 1):uint()] or "?") .. shape
    if value:len() > at + 4 * ndim then
      label = add_text(f.name, value(at + 4 * ndim), tree) .. " " .. label
    end
    return label
  end

  -- One tensor of a SIGNATURE; returns its label and the offset behind it, or nil at a fault.
  local function signature_tensor(value, tree, at)
    if at + 8 > value:len() then return nil end
    local ndim, name_nbytes = value(at + 1, 1):uint(), value(at + 2, 2):le_uint()
    local used = 8 + 4 * ndim + name_nbytes
    local padded = 8 * math.ceil(used / 8)
    if at + padded > value:len() then return nil end
    local branch = tree:add(f.tlv_value, value(at, padded))
    branch:add(f.dtype, value(at, 1))
    branch:add(f.ndim, value(at + 1, 1))
    branch:add_le(f.name_length, value(at + 2, 2))
    local shape = add_dims(value, branch, at + 8, ndim)
    local name = name_nbytes > 0 and add_text(f.name, value(at + 8 + 4 * ndim, name_nbytes), branch) or ""
    local label = string.format("%s %s%s", name, DTYPES[value(at, 1):uint()] or "?", shape)
    branch:set_text(label)
    return label, at + padded
  end

  local function signature(value, tree)
    add_layout(SIGNATURE, value, tree, 0)
    if value:len() < 16 then return "" end
    local inputs, count = value(6, 2):le_uint(), value(6, 2):le_uint() + value(8, 2):le_uint()
    local labels, at = {}, 16
    for index = 1, count do
      local label, next_at = signature_tensor(value, tree, at)
      if label == nil then
        tree:add_tvb_expert_info(malformed, value, "SIGNATURE ends inside a tensor")
        break
      end
      labels[#labels + 1] = (index == inputs + 1 and "-> " or "") .. label
      at = next_at
    end
    return table.concat(labels, " ")
  end

  local function outputs(value, tree)
    for at = 0, value:len() - 2, 2 do tree:add_le(f.output, value(at, 2)) end
    return ""
  end

  local function version(value, tree)
    if value:len() ~= 4 then return "" end
    tree:add_le(f.version, value)
    return tostring(value:le_uint())
  end

  local function auth(_, tree)  -- captures are passed around; the secret in one need not be on show
    tree:append_text(", not shown")
    return ""
  end

  local DECODERS = { MODEL = text, TENANT = text, TRACEPARENT = text, PARAMS = text, CLIENT = text, ERRMSG = text,
    TENSOR = tensor, SIGNATURE = signature, OUTPUTS = outputs, VERSION = version, AUTH = auth }

  local function add_value(name, value, tree)
    if DECODERS[name] then return DECODERS[name](value, tree) end
    if LAYOUTS[name] == nil then
      tree:add(f.tlv_value, value)
      return ""
    end
    local at = add_layout(LAYOUTS[name], value, tree, 0)
    if name == "SERVER" and at < value:len() then return add_text(f.server_name, value(at), tree) end
    return ""
  end

  -- Adds one TLV; returns its name, its value as text for the summary, and the offset behind it, or nil at a fault.
  local function add_tlv(tvb, tree, at)
    local left = tvb:len() - at
    if left < 8 then
      tree:add_tvb_expert_info(malformed, tvb(at), "Meta ends inside the head of a TLV")
      return nil
    end
    local number, nbytes = tvb(at, 2):le_uint() % 0x8000, tvb(at + 4, 4):le_uint()
    local name = TAGS[number] or string.format("tag %d", number)
    local padded = 8 + 8 * math.ceil(nbytes / 8)
    if padded > left then
      tree:add_tvb_expert_info(malformed, tvb(at), name .. " is longer than the meta")
      return nil
    end
    local branch = tree:add(f.tlv, tvb(at, padded)):set_text(name)
    branch:add_le(f.tag, tvb(at, 2))
    branch:add_le(f.ignorable, tvb(at, 2))
    branch:add_le(f.tlv_flags, tvb(at + 2, 2))
    branch:add_le(f.tlv_length, tvb(at + 4, 4))
    local shown = nbytes > 0 and add_value(name, tvb(at + 8, nbytes), branch) or ""
    if shown ~= "" then branch:append_text(": " .. shown) end
    return name, shown, at + padded
  end

  -- Adds all TLVs of `tvb`; returns name -> text of the first of each.
  local function dissect(tvb, tree)
    local found, at = {}, 0
    while at < tvb:len() do
      local name, shown, next_at = add_tlv(tvb, tree, at)
      if name == nil then break end
      found[name] = found[name] or shown
      at = next_at
    end
    return found
  end

  return { fields = f, dissect = dissect }
end
