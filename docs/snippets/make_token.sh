openssl rand -hex 32 > web.token
echo "web infer $(tr -d '\n' < web.token | sha256sum | cut -d' ' -f1)" >> tokens.txt
chmod 600 web.token tokens.txt
